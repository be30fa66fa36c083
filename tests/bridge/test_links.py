"""The hosts and links of links.py do what the tests of bridges expect of them."""

from __future__ import annotations

import contextlib
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests import ROOT
from tests.bridge import links
from tests.helpers.processes import poll, runs

SERVE = """
import socket, sys
server = socket.create_server((sys.argv[1], 9000))
print("listening", flush=True)
peer, _ = server.accept()
while data := peer.recv(1 << 16):
    peer.sendall(data)
"""
ECHO = """
import socket, sys, time
peer = socket.create_connection((sys.argv[1], 9000))
peer.settimeout(0.3)
for line in sys.stdin:
    data = b"x" * int(line)
    begun = time.monotonic()
    try:
        peer.sendall(data)
        left = len(data)
        while left:
            left -= len(peer.recv(1 << 16))
        print(time.monotonic() - begun, flush=True)
    except TimeoutError:
        print("timeout", flush=True)
"""


@pytest.fixture
def link() -> Iterator[links.Link]:
    with contextlib.ExitStack() as stack:
        try:
            yield stack.enter_context(links.link())
        except links.Unavailable as why:
            pytest.skip(str(why))


@pytest.fixture
def echo(link: links.Link) -> subprocess.Popen[str]:
    """A process of the near host, of which each line asks for an echo of so many bytes."""
    both = {"stdin": subprocess.PIPE, "stdout": subprocess.PIPE}
    server = link.far.start(sys.executable, "-c", SERVE, link.far.address, **both)
    assert server.stdout
    assert server.stdout.readline() == "listening\n"
    return link.near.start(sys.executable, "-c", ECHO, link.far.address, **both)


def _ask(process: subprocess.Popen[str], nbytes: int) -> str:
    assert process.stdin
    assert process.stdout
    process.stdin.write(f"{nbytes}\n")
    process.stdin.flush()
    return process.stdout.readline().strip()


def test_each_host_has_its_own_shared_memory(link, name):
    for host in (link.near, link.far):
        host.run(sys.executable, "-c", f"open('/dev/shm/{name}', 'x').write('{host.address}')")
        assert (host.shm / name).read_text() == host.address
    assert not Path("/dev/shm", name).exists()


@pytest.mark.parametrize("one_way", [False, True])
def test_a_cut_tells_nobody_and_what_was_sent_meanwhile_arrives_when_it_is_healed(
    link, echo, one_way
):
    float(_ask(echo, 1000))
    link.cut(*([link.near] if one_way else []))
    assert _ask(echo, 1) == "timeout"
    link.heal()
    # The late answer to the first question is taken for the answer to a later one.
    poll(lambda: _ask(echo, 1) != "timeout")


@pytest.mark.slow
def test_packets_are_lost_and_tcp_sends_them_again(link, echo):
    link.lose(0.05)
    for _ in range(10):
        poll(lambda: _ask(echo, 100_000) != "timeout")
    assert sum(_sent_again(host) for host in (link.near, link.far)) > 0


def _sent_again(host: links.Host) -> int:
    names, values = (
        line.split()
        for line in Path(f"/proc/{host.pid}/net/snmp").read_text().splitlines()
        if line.startswith("Tcp:")
    )
    return int(values[names.index("RetransSegs")])


def test_a_limit_bounds_the_rate(link, echo):
    link.limit(8)  # 1 MB/s: 200 kB there and, at the same time, back take 0.13 s behind the burst
    assert float(_ask(echo, 200_000)) > 0.1


def three(holders):
    """All processes of these hosts, as soon as there are three."""
    found = [pid for holder in holders for pid in links.processes_of(holder)]
    return found if len(found) == 3 else None


def test_nothing_is_left_when_a_test_is_killed():
    program = (
        "import sys\n"
        "from tests.bridge import links\n"
        "with links.link() as link:\n"
        "    link.far.start('sleep', '1000')\n"
        "    print(link.near.pid, link.far.pid, flush=True)\n"
        "    sys.stdin.read()\n"
    )
    test = subprocess.Popen(
        [sys.executable, "-c", program],
        cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE,
        stderr=subprocess.PIPE, text=True,
    )  # fmt: skip
    try:
        assert test.stdout
        holders = [int(pid) for pid in test.stdout.readline().split()]
        if not holders:
            pytest.skip(test.communicate(timeout=60)[1].splitlines()[-1])
        left = poll(lambda: three(holders))
    finally:
        test.kill()
        test.communicate(timeout=60)
    poll(lambda: not [pid for pid in left if runs(pid)])
