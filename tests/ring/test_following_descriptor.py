"""The descriptor of a peer that has joined with `reattach=True` hears of the next ring.

The processes that die for it are in tests/kill/test_following.py.
"""

from __future__ import annotations

import contextlib
import errno
import os
import uuid
from pathlib import Path

import pytest

import gpuring
from gpuring.ring import following
from tests.helpers.cameras import OPTIONS
from tests.helpers.processes import has_timer, open_files, poll
from tests.helpers.rings import publish, readable


@pytest.fixture(params=["consumer", "producer"])
def who(request):
    return request.param


@contextlib.contextmanager
def at_its_end(name, who):
    """An endpoint whose descriptor was asked for, and whose ring was closed."""
    first = gpuring.create(name, **OPTIONS)
    with gpuring.attach(name) as ring, getattr(ring, who)(reattach=True) as endpoint:
        endpoint.fileno()
        first.close()
        assert readable(endpoint, 20)
        assert not answers(endpoint)
        yield endpoint


def answers(endpoint):
    """Whether the endpoint's verb gets a slot.  If not, the verb arms the descriptor."""
    try:
        if isinstance(endpoint, gpuring.Consumer):
            endpoint.acquire(0).release()
        else:
            endpoint.claim(0).abandon()
    except gpuring.RingTimeout:
        return False
    return True


@contextlib.contextmanager
def next_ring(name, endpoint):
    """Another ring takes the name, and the endpoint moves there when it hears of that.  It then
    waits for a frame, or for a slot."""
    with gpuring.create(name, **OPTIONS) as ring, ring.producer() as producer, ring.consumer():
        publish(producer, 7)
        poll(lambda: readable(endpoint, 20) and answers(endpoint))
        poll(lambda: not answers(endpoint))
        yield


def comes(name):
    """Makes a file in /dev/shm that belongs to no ring."""
    other = Path(f"/dev/shm/other-{name}-{uuid.uuid4()}")
    other.touch()
    other.unlink()


def test_a_descriptor_hears_of_the_next_ring_and_then_of_no_other_name(name, who, monkeypatch):
    monkeypatch.setattr(following, "LOOK_AGAIN_S", 0)  # looks are not put off
    with at_its_end(name, who) as endpoint:
        assert not readable(endpoint)
        number, before = endpoint.fileno(), endpoint.ring
        with next_ring(name, endpoint):
            assert endpoint.fileno() == number
            assert endpoint.ring is not before
            comes(name)
            assert not readable(endpoint)


def test_names_of_others_do_not_wake_it_again_and_again(name, who, monkeypatch):
    with at_its_end(name, who) as endpoint:
        comes(name)
        assert readable(endpoint)
        monkeypatch.setattr(following, "LOOK_AGAIN_S", 3600)
        assert not answers(endpoint)
        comes(name)
        assert not readable(endpoint)
        monkeypatch.setattr(following, "LOOK_AGAIN_S", 0)
        assert not answers(endpoint)
        comes(name)
        assert readable(endpoint)


def test_without_reports_of_names_it_looks_now_and_then(name, who, monkeypatch):
    def refuses(path):
        raise OSError(errno.EMFILE, "this user has as many watches as he may", path)

    monkeypatch.setattr(following, "NameWatch", refuses)
    with at_its_end(name, who) as endpoint, next_ring(name, endpoint):
        assert not readable(endpoint, 0.1)


def test_a_closed_one_watches_no_names(name, who):
    """A user may have only 128 watches.  The descriptor is readable, because the endpoint is
    closed."""

    def watches():
        return [fd for fd, what in open_files().items() if what == "anon_inode:inotify"]

    before = watches()
    with at_its_end(name, who) as endpoint:
        number = endpoint.fileno()
        assert len(watches()) == len(before) + 1
        endpoint.close()
        assert watches() == before
        assert endpoint.fileno() == number
        assert readable(endpoint)


def forks(pipe, name, who):
    """The forked child calls everything, and stays.  Returns what the child got."""
    following.LOOK_AGAIN_S = 0
    with at_its_end(name, who) as endpoint:
        told, tell = os.pipe()
        go_on, go = os.pipe()
        if os.fork() == 0:
            os.close(go)
            for call in (endpoint.fileno, lambda: answers(endpoint)):
                with contextlib.suppress(gpuring.RingError):
                    call()
                    os.write(tell, b"no error")
            gpuring.select([endpoint], 0)
            endpoint.close()
            del endpoint
            os.close(tell)
            os.read(go_on, 1)
            os._exit(0)
        os.close(tell)
        with os.fdopen(told) as told:
            errors = told.read()
        assert has_timer(os.getpid())
        with next_ring(name, endpoint):
            comes(name)
            assert not readable(endpoint)
        os.close(go)
        os.wait()
        return errors


def test_a_forked_child_disturbs_nothing(name, who, children):
    assert children(forks, name, who).result() == ""


def test_a_look_that_fails_is_made_again(name):
    """At first the next ring has no room for the endpoint, and no event says when there is some."""
    first = gpuring.create(name, **OPTIONS)
    with gpuring.attach(name) as ring, ring.consumer(reattach=True) as endpoint:
        endpoint.fileno()
        first.close()
        assert readable(endpoint, 20)
        assert not answers(endpoint)
        with (
            gpuring.create(name, **OPTIONS, max_subscriptions=1) as full,
            full.producer() as producer,
        ):
            with full.consumer():
                poll(
                    lambda: (
                        readable(endpoint, 20)
                        and not answers(endpoint)
                        and not readable(endpoint, 0)
                    )
                )
            publish(producer, 7)
            poll(lambda: readable(endpoint, 20) and answers(endpoint))
