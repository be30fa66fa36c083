"""The name of this host, and the addresses of others."""

from __future__ import annotations

import pytest

from gpuring.bridge.descriptors import readable
from gpuring.bridge.network import addresses
from tests.helpers.processes import open_files


@pytest.mark.parametrize(
    ("has", "is_called"),
    [("h", "h"), ("a/b\nc", "abc"), ("x" * 65, "x" * 64), ("/", "host")],
    ids=["usual", "odd", "long", "none"],
)
def test_the_name_of_this_host_is_one_part_of_that_of_an_importer(monkeypatch, has, is_called):
    monkeypatch.setattr("socket.gethostname", lambda: has)
    assert addresses.hostname() == is_called


@pytest.mark.parametrize("host", ["LOCALHOST", "me@home"])
def test_who_asks_for_addresses_has_nothing_open_after_the_answer(host):
    before = open_files()
    lookup = addresses.Lookup(host)
    assert readable([lookup.fileno()], 60)
    if host == "LOCALHOST":
        assert "127.0.0.1" in lookup.answer()
    else:
        with pytest.raises(addresses.NoAddress, match="me@home does not resolve"):
            lookup.answer()
    assert not open_files().items() - before.items()


def test_who_may_listen_where():
    assert addresses.to_listen_at("localhost:65535", any_address=False) == "127.0.0.1:65535"
    assert addresses.to_listen_at("10.0.0.5:0", any_address=True) == "10.0.0.5:0"
    with pytest.raises(ValueError, match=r"other hosts can reach 10\.0\.0\.5: give a key"):
        addresses.to_listen_at("10.0.0.5:0", any_address=False)
    with pytest.raises(ValueError, match="must be HOST:PORT"):
        addresses.to_listen_at("127.0.0.1:65536", any_address=False)


def test_a_port_that_is_reserved_is_nobody_elses():
    with addresses.reserved("127.0.0.1:0") as kept:
        host, port = kept.getsockname()
        assert (host, port > 0) == ("127.0.0.1", True)
    assert addresses.reserved("192.0.2.1:9760") is None
