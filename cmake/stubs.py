"""Writes the stubs of Cython modules with the docstrings of their sources, for editors.

    python stubs.py ROOT INTO

Editors show the docstrings of stubs, and cannot read a .pyx file.  CMakeLists.txt calls this for a
wheel.  In a checkout the stubs have types alone, so that each docstring stands once.
"""

import ast
import re
import sys
from pathlib import Path
from textwrap import indent

HEAD = re.compile(r"( *)(?:(?:cdef |async )?(?:class|def)|cpdef(?: \w+)?) (\w+)")
BORROWED = re.compile(r"( +)(\w+_async) = (\w+)\.\2$")


def docstrings(source: Path) -> dict[str, str]:
    """The docstrings of classes and functions, as they stand there, by their qualified names."""
    found = {}
    around: list[str] = []
    lines = iter(source.read_text().splitlines())
    for line in lines:
        if borrowed := BORROWED.match(line):
            space, name, module = borrowed.groups()
            text = docstrings(source.with_name(f"{module}.py"))[name]
            found[f"{around[0]}.{name}"] = indent(text, space)
        head = HEAD.match(line)
        if not head:
            continue
        around[len(head[1]) // 4 :] = [head[2]]
        whole = line
        while whole.count("(") > whole.count(")"):
            whole += next(lines)
        if whole.partition("#")[0].rstrip().endswith(":"):
            text = next(lines)
            if text.lstrip().startswith('"""'):
                while text.count('"""') < 2:
                    text += "\n" + next(lines)
                found[".".join(around)] = text
    return found


def documented(stub: str, docs: dict[str, str]) -> str:
    """The stub with these docstrings."""
    lines = stub.splitlines()

    def visit(body: list[ast.stmt], around: str) -> None:
        for node in reversed(body):  # from the end, so that the numbers of lines stay right
            if not isinstance(node, ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                continue
            name, first = f"{around}{node.name}", node.body[0]
            if isinstance(node, ast.ClassDef):
                visit(node.body, f"{name}.")
            if name not in docs:
                continue
            if ast.unparse(first) == "...":
                lines[first.lineno - 1] = lines[first.lineno - 1].removesuffix(" ...")
                lines.insert(first.lineno, docs[name])
            else:
                decorators = getattr(first, "decorator_list", [])
                lines.insert(min(each.lineno for each in (first, *decorators)) - 1, docs[name])

    visit(ast.parse(stub).body, "")
    return "\n".join(lines) + "\n"


def write(root: Path, into: Path) -> None:
    for stub in root.glob("gpuring/**/*.pyi"):
        text = documented(stub.read_text(), docstrings(stub.with_suffix(".pyx")))
        made = into / stub.relative_to(root)
        made.parent.mkdir(parents=True, exist_ok=True)
        made.write_text(text)


if __name__ == "__main__":
    write(*map(Path, sys.argv[1:]))
