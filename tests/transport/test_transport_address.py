from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st

from wireherd.errors import UsageError
from wireherd.transport import Address
from wireherd.transport.address import MAX_ALTERNATIVES


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
        ("unix:/a+b@c", Address("unix", name="/a+b@c"), "unix:/a+b@c"),
        ("memory:x", Address("memory", name="x"), "memory:x"),
        ("device:/dev/usb4_0", Address("device", name="/dev/usb4_0"), "device:/dev/usb4_0"),
        ("b:1@eth1", Address("tcp", "b", 1, via="eth1"), "b:1@eth1"),
        ("b@thunderbolt0", Address("tcp", "b", 50052, via="thunderbolt0"), "b:50052@thunderbolt0"),
        ("10.0.0.2:7@10.0.0.1", Address("tcp", "10.0.0.2", 7, via="10.0.0.1"), "10.0.0.2:7@10.0.0.1"),
        ("[fe80::2]:7@eth0.3", Address("tcp", "fe80::2", 7, via="eth0.3"), "[fe80::2]:7@eth0.3"),
        (
            "fe80::2@[fe80::1%eth0]",
            Address("tcp", "fe80::2", 50052, via="fe80::1%eth0"),
            "[fe80::2]:50052@fe80::1%eth0",
        ),
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
        "b:1@",
        "@eth1",
        "b:1@a@b",
        "b:1@an-interface-of-a-name-too-long",
        "b:1@eth 1",
        "b:1@eth/1",
        "b+c:1",
        "device:",
        "device:\0",
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


def test_several_addresses_of_one_worker():
    found = Address.parse_all("a:50052+ 10.0.0.2:50052@thunderbolt0 +[::1]+a:50052+unix:/x+y")
    assert [str(each) for each in found] == [
        "a:50052",
        "10.0.0.2:50052@thunderbolt0",
        "[::1]:50052",
        "unix:/x+y",
    ]


@pytest.mark.parametrize("text", ["", "+", "a+", "+a", "a++b", "a+b:x", "+".join(f"h{i}" for i in range(17))])
def test_lists_that_are_none(text):
    with pytest.raises(UsageError) as caught:
        Address.parse_all(text)
    assert "\n" not in str(caught.value)


LIKELY = st.text(st.sampled_from("ab1:.@+[]%/, \0-\n٣") | st.characters(), max_size=30)


@given(LIKELY | LIKELY.map(lambda text: f"device:{text}") | LIKELY.map(lambda text: f"h:1@{text}"))
def test_any_text_gives_addresses_that_parse_back_or_a_sentence(text):
    try:
        found = Address.parse_all(text)
    except UsageError:
        return
    assert 0 < len(found) <= MAX_ALTERNATIVES
    for each in found:
        assert Address.parse(str(each)) == each
        assert 0 <= each.port <= 0xFFFF
        assert "\0" not in each.host + each.name + each.via
