"""Two hosts on this machine and a link between them that can be slow, lose packets, and be cut.

A host is a network namespace and a /dev/shm of its own, so rings of two hosts may have one name.
The link is a veth pair.  `tc` limits its rate, and small BPF programs at its ends drop packets.
It needs root, unshare, nsenter, ip and tc.

A process that holds the namespaces of a host waits for the end of its standard input.  So if the
test is killed, even by SIGKILL, all processes of the host are killed and the namespaces are gone.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from tests.helpers.processes import PATIENCE_S

RANDOM = 0x100000000 - 0x1000 + 56
"""SKF_AD_OFF + SKF_AD_RANDOM: where classic BPF loads a random word from."""
PASS, DROP = "6 0 0 0", "6 0 0 2"
"""Programs of one instruction: return TC_ACT_OK, return TC_ACT_SHOT."""


class Unavailable(Exception):
    """Why there can be no such hosts here."""


class Failed(Exception):
    """A command has failed."""


class Host:
    """A host whose processes have a network and a /dev/shm of their own.  All else is as
    outside."""

    def __init__(self, address: str) -> None:
        self.address = address
        self._holder = subprocess.Popen(
            ["unshare", "--net", "--mount", "--propagation", "private", sys.executable, __file__],
            stdin=subprocess.PIPE, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True,
        )  # fmt: skip
        self.pid = self._holder.pid
        assert self._holder.stdout
        said = self._holder.stdout.readline().strip()
        if said != "ready":
            said += self._holder.stdout.read()
            self.close()
            raise Unavailable(said) if said.startswith(("unshare:", "mount:")) else Failed(said)
        self.shm = Path(f"/proc/{self.pid}/root/dev/shm")

    def command(self, *command: Any) -> list[str]:
        """Returns the command that runs this one in the host, as the very process that is
        started."""
        enter = ["nsenter", f"--target={self.pid}", "--net", "--mount", f"--wd={Path.cwd()}"]
        return [*enter, "--", *map(str, command)]

    def start(self, *command: Any, **options: Any) -> subprocess.Popen[str]:
        return subprocess.Popen(self.command(*command), text=True, **options)

    def run(self, *command: Any) -> str:
        """Runs a command to its end.  Returns what it printed.  Raises Failed."""
        done = subprocess.run(
            self.command(*command), capture_output=True, text=True, timeout=PATIENCE_S, check=False
        )
        if done.returncode:
            raise Failed(f"{' '.join(map(str, command))}: {done.stderr.strip()}")
        return done.stdout

    def processes(self) -> dict[int, str]:
        """Returns the commands of all that run in it, by their pids."""
        return {pid: line for pid, line in processes_of(self.pid).items() if pid != self.pid}

    def close(self) -> None:
        assert self._holder.stdin
        self._holder.stdin.close()
        try:
            self._holder.wait(PATIENCE_S)
        except subprocess.TimeoutExpired:
            self._holder.kill()
            self._holder.wait()
        assert self._holder.stdout
        self._holder.stdout.close()


class Link:
    """A link between the hosts `near` and `far`."""

    def __init__(self, near: Host, far: Host) -> None:
        self.near, self.far = near, far
        near.run(
            *("ip", "link", "add", "wire", "type", "veth"),
            *("peer", "name", "wire", "netns", far.pid),
        )
        for host in (near, far):
            host.run("ip", "address", "add", f"{host.address}/24", "dev", "wire")
            # There is one packet at a time, as on a wire.  Otherwise several would be dropped at
            # once.
            host.run("ip", "link", "set", "wire", "up", "gso_max_segs", "1")
            host.run("tc", "qdisc", "add", "dev", "wire", "clsact")
        self.heal()

    def cut(self, *receivers: Host) -> None:
        """Drops everything without an error.  With `receivers`, only what these hosts would get."""
        self._receive(receivers, f"1,{DROP}")

    def lose(self, share: float, *receivers: Host) -> None:
        """Drops a share of the packets that arrive: 0.01 is one in a hundred."""
        below = f"53 0 1 {round(share * 0xFFFFFFFF)}"  # jumps if the random word is not less
        self._receive(receivers, f"4,32 0 0 {RANDOM},{below},{PASS},{DROP}")

    def heal(self) -> None:
        """Lets everything arrive again.  A limit of the rate stays."""
        self._receive((), f"1,{PASS}")

    def limit(self, mbit_s: float) -> None:
        """Limits the rate of each direction, which then holds packets back for 50 ms at most."""
        for host in (self.near, self.far):
            host.run(
                *("tc", "qdisc", "replace", "dev", "wire", "root", "tbf"),
                *("rate", f"{mbit_s}mbit", "burst", "64kb", "latency", "50ms"),
            )

    def _receive(self, receivers: Sequence[Host], program: str) -> None:
        for host in receivers or (self.near, self.far):
            host.run(
                *("tc", "filter", "replace", "dev", "wire", "ingress", "pref", "1", "handle", "1"),
                *("bpf", "bytecode", program, "direct-action"),
            )


@contextlib.contextmanager
def link() -> Iterator[Link]:
    """Makes two hosts and a link, and removes them with all that still runs there.  Raises
    Unavailable."""
    if os.geteuid() != 0:
        raise Unavailable("network namespaces need root")
    if missing := [tool for tool in ("unshare", "nsenter", "ip", "tc") if not shutil.which(tool)]:
        raise Unavailable(f"not installed: {', '.join(missing)}")
    with contextlib.ExitStack() as stack:
        hosts = []
        for address in ("10.77.0.1", "10.77.0.2"):
            hosts.append(Host(address))
            stack.callback(hosts[-1].close)
        try:
            made = Link(*hosts)
        except Failed as failed:  # this kernel lacks something
            raise Unavailable(str(failed)) from None
        yield made


# ---- who is where --------------------------------------------------------------------------------


def processes_of(member: int | str) -> dict[int, str]:
    """Returns the commands of all processes of a process's network namespace, by their pids."""
    ours, found = Path(f"/proc/{member}/ns/net").stat().st_ino, {}
    for each in Path("/proc").glob("[0-9]*"):
        with contextlib.suppress(OSError):
            if (each / "ns/net").stat().st_ino == ours:
                line = (each / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                found[int(each.name)] = line.strip()
    return found


def hold() -> None:
    """Holds a host's namespaces until the standard input ends.  This is the whole program of a
    process."""
    for command in (
        ["mount", "-t", "tmpfs", "tmpfs", "/dev/shm"],
        ["ip", "link", "set", "lo", "up"],
    ):
        if subprocess.run(command, check=False, timeout=PATIENCE_S).returncode:
            return
    print("ready", flush=True)
    for sent in (signal.SIGINT, signal.SIGTERM):
        signal.signal(sent, signal.SIG_IGN)  # it ends after all others, by the end of its input
    sys.stdin.read()
    until = time.monotonic() + PATIENCE_S
    while (left := set(processes_of("self")) - {os.getpid()}) and time.monotonic() < until:
        for pid in left:
            with contextlib.suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.01)


if __name__ == "__main__":
    hold()
