"""What a bridge refuses, and its errors."""

from __future__ import annotations

import contextlib
import os
import signal
import socket
from dataclasses import replace

import pytest

import gpuring
from gpuring.cli import clean
from gpuring.cli.doctor import host
from gpuring.cli.inspect import describe
from gpuring.errors import RingError, RingExists
from gpuring.registry import survey
from gpuring.ring import inner
from tests.helpers.processes import Pipe, open_files, poll, up
from tests.helpers.rings import create_far, segments_of

pytest.importorskip("zmq")

from gpuring import bridge
from gpuring.bridge import Import
from gpuring.bridge.network import wire, wire_bytes
from tests.bridge.bridge_sides import importer
from tests.bridge.bridges import WAIT_S, both_ends, put, ring_of, take


def why_over(importer: Import) -> str:
    """Why an importer cannot go on."""
    with importer, pytest.raises(RingError) as refused:
        importer.wait(WAIT_S)
    return str(refused.value)


@pytest.mark.slow
def test_a_ring_that_is_not_exported_there(near, far, caplog):
    with bridge.export(near, listen="127.0.0.1:0") as out:
        told = why_over(bridge.import_(f"{out.address}/other", name=far, device="host"))
    assert f"exports ring '{near}' here, and not 'other'" in told
    assert "exports ring" in caplog.text  # programs that only attach to the far ring need the log


@pytest.mark.slow
def test_a_second_importer_of_one_ring(near, far):
    told = r"is in use.* another name \(the argument name, or --as of the command\)"
    with both_ends(near, far) as ends, pytest.raises(RingExists, match=told):
        bridge.import_(f"{ends.out.address}/{near}", name=far, device="host")


def leave(pipe: Pipe, far: str) -> None:
    """Makes a far ring, as an importer that is killed leaves it."""
    origin = {"host": "h", "ring": "x"}
    with create_far(far, origin, slots=16, shape=4, dtype="i8", device="host") as ring:
        inner.set_link(ring, b"e" * 16, 5, 0)
        pipe.ask()


def test_a_dead_creator_is_not_called_alive_where_an_importer_has_gone_on(
    far, children, monkeypatch
):
    before = up(children(leave, far))
    with gpuring.attach(far) as ring:
        assert not ring.stats().taken_over
        before.kill()
        with bridge.import_("127.0.0.1:1/x", name=far, device="host"):
            assert ring.stats().taken_over
            assert f"by pid {before.pid} (dead: " in describe(ring.stats())
            (fate,) = clean.foresee(far.__eq__)
            assert f"pid {before.pid}) is dead, but an importer" in fate.why
            assert not fate.goes
            contained = replace(ring.stats(), creator_elsewhere=True)
            monkeypatch.setattr(survey, "all_rings", lambda: ([contained], {}))
            assert host.look().foreign_pids == ()


def test_nobody_takes_the_name_of_a_ring_in_which_an_importer_has_gone_on(far, children):
    """The ring's creator is dead, and it has no producers when the near stream has ended."""
    before = up(children(leave, far))
    with gpuring.attach(far) as ring:  # so that it stays
        before.kill()
        with bridge.import_("127.0.0.1:1/x", name=far, device="host") as into:
            assert into._ring._epoch == ring._epoch
            into._producer.close()
            with pytest.raises(RingExists, match="is in use"):
                bridge.import_("127.0.0.1:1/x", name=far, device="host")
            with pytest.raises(RingExists):
                ring_of(far)


@pytest.mark.slow
@pytest.mark.parametrize(("taken", "told"), [(True, "another program's"), (False, "was removed")])
def test_a_worker_whose_ring_has_no_name_any_more_is_not_started_for_ever(near, far, taken, told):
    with both_ends(near, far) as ends:
        put(ends.producer, 0)
        assert take(ends.frames) == 0
        gpuring.unlink(far)
        with ring_of(far) if taken else contextlib.nullcontext():
            os.kill(ends.into.pid, signal.SIGKILL)
            with pytest.raises(RingError, match=told):
                ends.into.wait(WAIT_S)


def test_an_importer_that_is_refused_at_once_leaves_nothing_open(far):
    with ring_of(far):
        before = open_files()
        with pytest.raises(RingExists, match="is in use"):
            bridge.import_("127.0.0.1:1/x", name=far, device="host")
        assert open_files() == before


@pytest.mark.slow
def test_the_name_is_taken_while_it_connects(near, far):
    with bridge.export(near, listen="127.0.0.1:0") as out:
        importer = bridge.import_(f"{out.address}/{near}", name=far, device="host")
        with ring_of(far), ring_of(near):
            assert "another name (the argument" in why_over(importer)


def makes(pipe: Pipe, near: str) -> None:
    with ring_of(near):
        pipe.ask("made")


@pytest.mark.slow
def test_a_ring_is_not_imported_into_itself(near, children):
    """Both ends are on one host, and `name` is not given.  A ring whose creator is dead makes way
    for a new one of its name, but not for its own copy."""
    camera = children(makes, near)
    assert camera.receive() == "made"
    with bridge.export(near, listen="127.0.0.1:0") as out, gpuring.attach(near) as ring:
        camera.kill()
        told = why_over(bridge.import_(f"{out.address}/{near}", device="host"))
        assert "is the one that is to be imported. Choose another name (the argument" in told
        assert ring.stats().closed is False
    assert segments_of(near) == []


def test_an_exporter_that_is_not_there(far):
    told = why_over(bridge.import_("127.0.0.1:1/x", name=far, device="host", give_up=0.2))
    assert "no session for 0.2 s: nobody answers there" in told


@pytest.mark.slow
def test_an_address_where_no_machine_is(far, caplog):
    """Nothing comes from there, not even a refusal.  A port whose queue is full is like that,
    too."""
    caplog.set_level("INFO", "gpuring.bridge")
    with socket.create_server(("127.0.0.1", 0), backlog=0) as full, contextlib.ExitStack() as stack:
        for _ in range(3):
            one = stack.enter_context(socket.socket())
            one.setblocking(False)
            one.connect_ex(full.getsockname())
        where = f"127.0.0.1:{full.getsockname()[1]}/x"
        told = why_over(bridge.import_(where, name=far, device="host", timeout=0.2, give_up=0.5))
    assert "for 0.5 s: nobody answers there" in told
    assert "said nothing" not in caplog.text


def test_an_address_that_cannot_be(far):
    with pytest.raises(TypeError, match="not 9760"):
        bridge.import_(9760, name=far)
    with pytest.raises(TypeError, match="not 9760"):
        bridge.export(far, listen=9760)
    for where in ("127.0.0.1:0", "127.0.0.1:65536", "tcp://127.0.0.1:9760", "*:1", ":1"):
        with pytest.raises(
            ValueError, match=r"must be HOST:PORT/RING, such as .* of one host, not"
        ):
            bridge.import_(f"{where}/x", name=far, device="host")


def test_a_star_is_no_address(near):
    for insecure in (False, True):
        with pytest.raises(ValueError, match=r"all addresses of this host are 0\.0\.0\.0:9770"):
            bridge.export(near, listen="*:9770", insecure=insecure)


def test_a_device_that_cannot_be_is_refused_at_once(near, far):
    for make in (
        lambda device: bridge.export(near, listen="127.0.0.1:0", device=device),
        lambda device: bridge.import_("127.0.0.1:1/x", name=far, device=device),
    ):
        with pytest.raises(ValueError, match="must be 'host', 'cuda' or 'cuda:N', not 'foo'"):
            make("foo")
        with pytest.raises(ValueError, match="0 or more, not -1"):
            make(-1)
        with pytest.raises(TypeError, match="a GPU's number"):
            make(0.5)


@pytest.mark.slow
@pytest.mark.parametrize("device", ["host", None])
def test_an_export_of_a_ring_in_host_memory(near, far, device):
    with (
        ring_of(near) as ring,
        ring.producer() as producer,
        bridge.export(near, listen="127.0.0.1:0", device=device) as out,
        bridge.import_(f"{out.address}/{near}", name=far, device="host"),
        gpuring.attach(far, timeout=WAIT_S) as there,
        there.consumer(start="oldest") as frames,
    ):
        put(producer, 1)
        assert take(frames) == 1


@pytest.mark.slow
def test_a_name_that_does_not_resolve_is_told_at_once_and_tried_again(near, far, caplog):
    caplog.set_level("INFO", "gpuring.bridge")
    told = why_over(bridge.import_("me@home:1/x", name=far, device="host", give_up=0.2))
    assert "no session for 0.2 s: me@home does not resolve: Name or service not known" in told
    with bridge.export(near, listen="me@home:0", insecure=True) as out:
        poll(lambda: "me@home does not resolve" in caplog.messages[-1], WAIT_S)
        assert out.stats().restarts == 0
    assert not any("is dead" in line for line in caplog.messages)


@pytest.mark.slow
def test_names_of_hosts(near, far):
    with pytest.raises(ValueError, match="home is a name, and other hosts may reach"):
        bridge.export(near, listen="home:0")
    elsewhere = "3221225985"  # another way to write 192.0.2.1
    with (
        bridge.export(near, listen=f"{elsewhere}:9760", insecure=True) as out,
        pytest.raises(RingError, match=r"listen at 3221225985:9760 \(192.0.2.1:9760\): this host"),
    ):
        out.wait(WAIT_S)
    host = "LOCALHOST"  # its address is used for this name
    with (
        ring_of(near) as ring,
        bridge.export(near, listen=f"{host}:0", insecure=True) as out,
        bridge.import_(f"{host}:{out.address.rpartition(':')[2]}/{near}", name=far, device="host"),
        gpuring.attach(far, timeout=WAIT_S) as there,
        there.consumer(start="oldest") as frames,
        ring.producer() as producer,
    ):
        put(producer, 1)
        assert take(frames) == 1


def test_an_importer_of_another_version(near):
    (hello,) = wire_bytes.encode(7, wire.Hello("x", "h/x", "0" * 16, "lossy", "", 0))
    with (
        bridge.export(near, listen="127.0.0.1:0") as out,
        importer(near, out.address, rcvtimeo=int(1000 * WAIT_S)) as far,
    ):
        far.socket.send(hello.partition(b"{")[0] + b'{"version": 3}')
        number, refused = wire_bytes.decode(far.socket.recv_multipart())
    assert (number, refused.again) == (7, False)
    assert "speaks version 3, and this one 2" in refused.reason


def test_half_a_pair_of_keys_is_not_left(tmp_path):
    (tmp_path / "bridge-import.key").touch()
    with pytest.raises(FileExistsError):
        bridge.keygen(tmp_path)
    assert [each.name for each in tmp_path.iterdir()] == ["bridge-import.key"]


def test_what_is_no_key_is_not_to_be_given_another_mode(near, tmp_path):
    program, large, pipe = (tmp_path / name for name in ("detector.py", "video.mp4", "pipe"))
    program.write_text("print('hello')")
    large.write_bytes(bytes(1 << 20))
    os.mkfifo(pipe)
    for path in (tmp_path, program, large, pipe):
        path.chmod(0o755)
        with pytest.raises(ValueError, match="is no key of a bridge: `gpuring bridge keygen`"):
            bridge.export(near, key=path)


@pytest.mark.slow
def test_keys(near, far, tmp_path, caplog):
    caplog.set_level("INFO", "gpuring.bridge")
    ours, theirs = bridge.keygen(tmp_path)
    assert [path.stat().st_mode & 0o777 for path in (ours, theirs)] == [0o600, 0o600]
    with pytest.raises(FileExistsError, match="give another folder"):
        bridge.keygen(tmp_path)
    with pytest.raises(ValueError, match="importer of a bridge: take bridge-import"):
        bridge.import_("127.0.0.1:1/x", name=far, key=ours)
    with pytest.raises(ValueError, match="give a key"):
        bridge.export(near, listen="0.0.0.0:9760")
    (tmp_path / "other").mkdir()
    _, strange = bridge.keygen(tmp_path / "other")
    with (  # a full part is the longest message when encrypted
        ring_of(near, shape=wire.MAX_PART) as ring,
        bridge.export(near, listen="127.0.0.1:0", key=ours) as out,
    ):
        where = {"address": f"{out.address}/{near}", "name": far, "device": "host"}
        for key in (strange, None):
            for give_up_s in (0.5, 5, 50):  # a busy machine may be too slow for the first
                told = why_over(bridge.import_(**where, key=key, timeout=0.5, give_up=give_up_s))
                if "the connection was closed at once" in told:
                    break
            assert f"no session for {give_up_s:g} s: the connection was closed at once" in told
            poll(lambda: "both sides need the keys of one pair" in caplog.text)
        with (
            bridge.import_(**where, key=theirs),
            ring.producer() as producer,
            gpuring.attach(far, timeout=WAIT_S) as there,
            there.consumer(start="oldest") as frames,
        ):
            put(producer, 1)
            assert take(frames) == 1
    ours.chmod(0o644)
    with pytest.raises(ValueError, match="chmod 600"):
        bridge.export(near, listen="127.0.0.1:0", key=ours)
