"""The handshake as pure functions: what two ends agree on, or why they cannot."""

from __future__ import annotations

from typing import TYPE_CHECKING, NamedTuple

from wireherd.errors import RemoteProtocolError, VersionMismatch
from wireherd.protocol.dialect import Dialect, dialect_for
from wireherd.protocol.messages_herd import MAGIC, Purpose
from wireherd.protocol.messages_stock import CONN_CAPS_SIZE
from wireherd.protocol.version import EXTENSION, NEWEST, RELEASES, SUPPORTED, Version

if TYPE_CHECKING:
    from wireherd.protocol.messages_herd import HerdHelloRequest


#: first version whose HELLO brings something
_GROWN = Version(4, 0)


class Offer(NamedTuple):
    """What one end can do; `end` names it in sentences."""

    end: str
    versions: tuple[Version, ...]
    #: whether it understands HERD_HELLO
    herd: bool = False


class Agreement(NamedTuple):
    """What both will do."""

    version: Version
    dialect: Dialect
    #: whether HERD_HELLO may be sent
    herd: bool


def client_offer(end: str = "this client", *, herd: bool = True) -> Offer:
    """What our client can do: every version with a dialect."""
    return Offer(end, SUPPORTED, herd)


def agree(local: Offer, remote: Offer) -> Agreement:
    """Choose the newest version that both have; the patch is the remote's, since it decides the remote's numbering.

    Raises:
        VersionMismatch: there is none; the sentence names both versions, both ends and the way out.
    """
    lines = {version.line for version in local.versions}
    common = [version for version in remote.versions if version.line in lines]
    if not common:
        raise VersionMismatch(_mismatch(local, remote))
    version = max(common)
    return Agreement(version, dialect_for(version), local.herd and remote.herd)


def agree_features(request: HerdHelloRequest, features: int) -> int:
    """Give the feature bits that both ends have.

    Raises:
        VersionMismatch: the client's extension is not ours.
        RemoteProtocolError: the message is no HERD_HELLO.
    """
    if request.magic != MAGIC:
        raise RemoteProtocolError("HERD_HELLO without its magic number")
    if request.purpose not in {int(purpose) for purpose in Purpose}:
        raise RemoteProtocolError(f"HERD_HELLO for an unknown purpose {request.purpose}")
    if request.extension != EXTENSION:
        raise VersionMismatch(
            f"the client speaks extension {request.extension} of wireherd, this worker {EXTENSION}: "
            f"run the same wireherd release on both"
        )
    return request.features & features


def foreign_hello(size: int, version: Version) -> str:
    """Say what a client is whose HELLO of `size` bytes is not that of `version`; empty where it is, or is none at all.

    HELLO says no version, but it grew: nothing before 4.0, 24 bytes from then on.
    """
    if size == (CONN_CAPS_SIZE if version >= _GROWN else 0) or size not in {0, CONN_CAPS_SIZE}:
        return ""
    theirs, fit = ("older than 4.0", SUPPORTED[0]) if not size else ("4.0 or newer", NEWEST)
    return f"the client speaks ggml RPC {theirs} and this worker answers as {version}: {way_out(fit, version)}"


def way_out(fit: Version, version: Version) -> str:
    """What to do about a client that does not speak the `version` of a worker; `fit` may be the client's."""
    release = RELEASES.get(version.line)
    here = f"start the worker with --protocol and the client's version, such as {fit.short}"
    return here + (f", or use a client of {version.short} ({release})" if release else "")


def _mismatch(local: Offer, remote: Offer) -> str:
    theirs, ours = _list(remote.versions), _list(local.versions)
    newest = max(remote.versions)
    head = f"{remote.end} speaks ggml RPC {theirs} and {local.end} speaks {ours}: "
    if newest > max(local.versions):
        return (
            f"{head}run a newer wireherd release that knows {newest.short} here, "
            f"or a server of version {NEWEST.short} there ({RELEASES[NEWEST.line]}, or wireherd worker)"
        )
    return f"{head}run a server of version {NEWEST.short} there ({RELEASES[NEWEST.line]}, or wireherd worker)"


def _list(versions: tuple[Version, ...]) -> str:
    if len(versions) == 1:
        return str(versions[0])
    texts = [version.short for version in versions]
    return ", ".join(texts[:-1]) + " and " + texts[-1]
