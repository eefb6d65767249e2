from __future__ import annotations

import pytest

from wireherd.errors import UsageError
from wireherd.transport import Address


@pytest.mark.parametrize(
    ("text", "address", "shown"),
    [
        ("b:1", Address("tcp", "b", 1), "b:1"),
        ("b", Address("tcp", "b", 50052), "b:50052"),
        (" 10.0.0.7:50053 ", Address("tcp", "10.0.0.7", 50053), "10.0.0.7:50053"),
        ("[::1]:7", Address("tcp", "::1", 7), "[::1]:7"),
        ("[::1]", Address("tcp", "::1", 50052), "[::1]:50052"),
        ("fe80::1%eth0", Address("tcp", "fe80::1%eth0", 50052), "[fe80::1%eth0]:50052"),
        ("mini-pc.local:50052", Address("tcp", "mini-pc.local", 50052), "mini-pc.local:50052"),
        ("unix:/run/w.sock", Address("unix", name="/run/w.sock"), "unix:/run/w.sock"),
        ("memory:x", Address("memory", name="x"), "memory:x"),
    ],
)
def test_spellings(text, address, shown):
    assert Address.parse(text) == address
    assert str(address) == shown
    assert Address.parse(shown) == address


@pytest.mark.parametrize(
    "text",
    [
        "",
        ":",
        ":5",
        "b:",
        "b:x",
        "b:70000",
        "b:-1",
        "b:1:2",
        "http://b:1",
        "[::1",
        "[b]:1",
        "[::1]x",
        "unix:",
        "memory:",
        "a b:1",
        "a,b",
        "b:٣",
        "user@b:1",
        "unix:/" + "x" * 200,
        "b/c:1",
        "b:999999999999999999999",
    ],
)
def test_nonsense_is_one_sentence(text):
    with pytest.raises(UsageError) as caught:
        Address.parse(text)
    assert "\n" not in str(caught.value)
    assert len(str(caught.value)) > 10
