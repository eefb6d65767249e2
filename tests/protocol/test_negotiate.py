"""What two ends agree on, and the sentences when they cannot."""

from __future__ import annotations

import pytest

from wireherd.errors import RemoteProtocolError, VersionMismatch
from wireherd.protocol.messages_herd import FEATURES, Feature, HerdHelloRequest
from wireherd.protocol.negotiate import Offer, agree, agree_features, client_offer
from wireherd.protocol.version import SUPPORTED, Version


def test_the_remote_decides_the_patch():
    agreement = agree(client_offer(), Offer("worker a:1", (Version(4, 0, 1),)))
    assert agreement.version == Version(4, 0, 1)
    assert agreement.dialect.version == Version(4, 0, 3)
    assert not agreement.herd


@pytest.mark.parametrize("version", SUPPORTED, ids=str)
def test_every_dialect_can_be_agreed(version):
    assert agree(client_offer(), Offer("worker", (version,), herd=True)).herd
    assert not agree(client_offer(herd=False), Offer("worker", (version,), herd=True)).herd


def test_newest_common_version_wins():
    assert agree(client_offer(), Offer("worker", (Version(5, 1), Version(7, 0), Version(12, 0)))).version == Version(
        7, 0
    )


@pytest.mark.parametrize(
    ("version", "words"),
    [
        (
            Version(10, 0),
            ["worker b:50052 speaks ggml RPC 10.0.0", "this client speaks", "8.0", "newer wireherd release"],
        ),
        (Version(2, 0), ["worker b:50052 speaks ggml RPC 2.0.0", "run a server of version 8.0 there", "b11739"]),
        (Version(5, 2), ["5.2.0", "run a server of version 8.0 there"]),
    ],
)
def test_a_mismatch_names_both_versions_both_ends_and_the_way_out(version, words):
    with pytest.raises(VersionMismatch) as caught:
        agree(client_offer(), Offer("worker b:50052", (version,)))
    assert all(word in str(caught.value) for word in words), str(caught.value)
    assert "\n" not in str(caught.value)


def test_features():
    assert agree_features(HerdHelloRequest(), int(FEATURES)) == FEATURES
    assert agree_features(HerdHelloRequest(features=(1 << 63) | 2), int(FEATURES)) == Feature.SUPPORTS_OP
    with pytest.raises(VersionMismatch, match="extension 2"):
        agree_features(HerdHelloRequest(extension=2), 0)
    with pytest.raises(RemoteProtocolError, match="magic"):
        agree_features(HerdHelloRequest(magic=5), 0)
    with pytest.raises(RemoteProtocolError, match="purpose"):
        agree_features(HerdHelloRequest(purpose=9), 0)
