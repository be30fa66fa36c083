"""Rings that cannot be read, as after an upgrade: exit statuses show them, and messages say which
processes use them."""

from __future__ import annotations

import json
import mmap
import os
import re
from pathlib import Path

import pytest

import gpuring
from gpuring import native
from gpuring.cli import main
from gpuring.cli.owners import myself
from gpuring.registry.users import users
from tests.helpers.processes import Pipe, up
from tests.helpers.rings import small_ring


def of_another_version(name: str) -> None:
    """Makes the ring's header name another version."""
    with Path(f"/dev/shm/gpuring.{name}").open("r+b") as file:
        file.seek(8)
        file.write(bytes([native.VERSION - 1]))


def guest(pipe: Pipe, name: str) -> None:
    with gpuring.attach(name):
        pipe.ask()


def stranger(pipe: Pipe, path: Path) -> None:
    with path.open("r+b") as file, mmap.mmap(file.fileno(), mmap.PAGESIZE):
        pipe.ask()


def test_ls_tells_scripts_of_rings_that_cannot_be_read(name, command, children):
    with small_ring(name):
        child = up(children(guest, name))
        of_another_version(name)
        listed = json.loads(command("ls", "--json").stdout)
        (entry,) = (one for one in listed if one["name"] == name)
        why = entry.pop("unreadable")
        assert f"its layout has version {native.VERSION - 1}, this build reads version " in why
        pids = sorted([os.getpid(), child.pid])
        assert entry == {"name": name, "owner": myself(), "used_by": pids}
        lines = command("ls").stdout.splitlines()
        (told,) = (line for line in lines if line.startswith(f"{name} is used by pid "))
        for pid in (os.getpid(), child.pid):
            assert re.search(rf"\bpid {pid} \([^)]*python", told), told


@pytest.mark.parametrize("options", [(), ("--dry-run",)], ids=["clean", "dry-run"])
def test_clean_says_which_process_uses_what_cannot_be_read(name, command, options):
    with small_ring(name):
        of_another_version(name)
        done = command("clean", *options, name)
        said = done.stdout + done.stderr
        assert f"), and pid {os.getpid()} (" in said
        assert said.endswith(") uses it\n")


def test_users_are_found_among_files_whose_names_have_odd_bytes(name, children, tmp_path):
    """Such a user cannot keep root from the answer, and a file's name alone makes no process a
    user."""
    with small_ring(name):
        found = Path(f"/dev/shm/gpuring.{name}").stat()
        device = f"{os.major(found.st_dev):02x}:{os.minor(found.st_dev):02x}"
        odd = b"odd\x0c\xff\r- - - " + f"{device} {found.st_ino}".encode()
        path = tmp_path / os.fsdecode(odd)
        path.write_bytes(bytes(mmap.PAGESIZE))
        up(children(stranger, path))
        assert set(users([name])[name]) == {os.getpid()}


def test_clean_says_so_where_it_cannot_know_which_process_that_is(name, command, monkeypatch):
    with small_ring(name):
        of_another_version(name)
        monkeypatch.setattr("gpuring.registry.users._pids", list)  # as of other users
        told = command("clean", "--dry-run", name).stdout
        assert "a process uses it, which is another user's or in another pid namespace" in told


def test_the_version_names_the_layout(capsys):
    with pytest.raises(SystemExit):
        main(["--version"])
    assert capsys.readouterr().out == f"gpuring {gpuring.__version__}, layout {native.VERSION}\n"
