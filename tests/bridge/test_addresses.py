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
    assert open_files() == before
