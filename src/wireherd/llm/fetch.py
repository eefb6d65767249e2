"""Files over HTTP into a folder: resumed, hashed, renamed into place only when whole, safe beside other processes.

A download goes to `NAME.part` while a lock on `NAME.lock` is held, so that a second process waits for the first and
then finds the file. A part that a killed process left behind is continued with a range request. Nothing that comes
from the network is trusted: the caller pins a hash, or the server's own hash is at least held against the bytes.

What was verified once is remembered in `NAME.json` (size, time of change, hash), so that a later start need not read
the whole file again.
"""

from __future__ import annotations

import base64
import contextlib
import hashlib
import http.client
import json
import os
import sys
import time
import urllib.error
import urllib.parse
import urllib.request
from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from wireherd import __version__
from wireherd.errors import ModelError
from wireherd.obs.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path
    from typing import IO

_log = get_logger(__name__)

USER_AGENT: Final = f"wireherd/{__version__}"
CHUNK_BYTES: Final = 1 << 20
TIMEOUT_S: Final = 30.0
_ATTEMPTS: Final = 3
_PAGE_LIMIT: Final = 32 << 20
_LOCK_POLL_S: Final = 0.2


#: told how far a long work is: what is going on, how much of it is done, how much there is (0 = unknown); must be
#: quick, and may raise to stop the work
Progress = Callable[[str, int, int], None]


def silent(_what: str, _done: int, _total: int) -> None:
    """Progress that nobody looks at."""


def _request(url: str, headers: Mapping[str, str], token: str | None = None) -> urllib.request.Request:
    """Build a request; credentials written into the URL, and `token`, never follow a redirect to another server."""
    try:
        parts = urllib.parse.urlsplit(url)
    except ValueError as error:
        raise ModelError(f"cannot fetch {url.rpartition('@')[2]}: {error}") from error
    if parts.scheme not in {"http", "https"}:
        raise ModelError(f"cannot fetch {url}: only http and https addresses are fetched")
    authorization = f"Bearer {token}" if token else ""
    if "@" in parts.netloc:
        user, _, place = parts.netloc.rpartition("@")
        url = urllib.parse.urlunsplit(parts._replace(netloc=place))
        authorization = "Basic " + base64.b64encode(urllib.parse.unquote(user).encode()).decode("ascii")
    request = urllib.request.Request(url, headers={"User-Agent": USER_AGENT, **headers})  # noqa: S310 - checked above
    if authorization:
        request.add_unredirected_header("Authorization", authorization)
    return request


def public_url(url: str) -> str:
    """Spell a URL for a message, without the credentials it may hold."""
    parts = urllib.parse.urlsplit(url)
    return urllib.parse.urlunsplit(parts._replace(netloc=parts.netloc.rpartition("@")[2], fragment=""))


@contextlib.contextmanager
def _faults(url: str) -> Iterator[None]:
    """Turn what urllib raises into one sentence that names the address."""
    try:
        yield
    except urllib.error.HTTPError as error:
        with error:
            raise ModelError(
                f"cannot fetch {public_url(url)}: the server answered {error.code} {error.reason}"
            ) from error
    except urllib.error.URLError as error:
        raise ModelError(f"cannot fetch {public_url(url)}: {error.reason}") from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise ModelError(f"cannot fetch {public_url(url)}: {error or type(error).__name__}") from error


def get_page(url: str, *, accept: str, token: str | None = None) -> tuple[bytes, Mapping[str, str], str]:
    """Read a small document; returns its bytes, its headers (keys as sent) and the address it finally came from.

    Raises:
        ModelError: it cannot be had, or is larger than 32 MiB.
    """
    request = _request(url, {"Accept": accept}, token)
    with _faults(url), urllib.request.urlopen(request, timeout=TIMEOUT_S) as reply:  # noqa: S310 - checked in _request
        body = reply.read(_PAGE_LIMIT + 1)
        headers, final = dict(reply.headers.items()), reply.geturl()
    if len(body) > _PAGE_LIMIT:
        raise ModelError(f"cannot use {public_url(url)}: the page is larger than {_PAGE_LIMIT >> 20} MiB")
    return body, headers, final


def sha256_file(path: Path, on_bytes: Callable[[int], None] | None = None) -> str:
    """Hash a file, hex; `on_bytes` hears how much was read so far."""
    digest = hashlib.sha256()
    done = 0
    with path.open("rb") as file:
        while block := file.read(CHUNK_BYTES):
            digest.update(block)
            done += len(block)
            if on_bytes:
                on_bytes(done)
    return digest.hexdigest()


def _stamp_path(path: Path) -> Path:
    return path.with_name(path.name + ".json")


def write_stamp(path: Path, sha256: str) -> None:
    """Remember that `path` as it lies there has this hash."""
    seen = path.stat()
    text = json.dumps({"size": seen.st_size, "mtime_ns": seen.st_mtime_ns, "sha256": sha256})
    temporary = path.with_name(f"{path.name}.json.{os.getpid()}")
    temporary.write_text(text, encoding="utf-8")
    temporary.replace(_stamp_path(path))


def verified(path: Path, sha256: str | None, size: int | None = None) -> bool:
    """Whether `path` is there and right: by its stamp if that fits the file, else by reading all of it."""
    try:
        seen = path.stat()
    except OSError:
        return False
    if size is not None and seen.st_size != size:
        return False
    if sha256 is None:
        return True
    with contextlib.suppress(OSError, ValueError, AttributeError):
        stamp = json.loads(_stamp_path(path).read_text(encoding="utf-8"))
        if stamp.get("size") == seen.st_size and stamp.get("mtime_ns") == seen.st_mtime_ns:
            return bool(stamp.get("sha256") == sha256)
    if sha256_file(path) != sha256:
        return False
    with contextlib.suppress(OSError):  # a read-only cache: the next start reads the file again
        write_stamp(path, sha256)
    return True


@contextlib.contextmanager
def locked(path: Path, progress: Progress = silent) -> Iterator[None]:
    """Hold the lock `path` (a file) against other processes; it ends with the process that holds it."""
    with path.open("a+b") as file:
        waited = False
        while not _try_lock(file):
            if not waited:
                _log.info("waiting for another process that fetches %s", path.stem)
                waited = True
            progress(f"waiting for another process to fetch {path.stem}", 0, 0)
            time.sleep(_LOCK_POLL_S)
        yield


if sys.platform == "win32":
    import msvcrt

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            msvcrt.locking(file.fileno(), msvcrt.LK_NBLCK, 1)
        except OSError:
            return False
        return True
else:
    import fcntl

    def _try_lock(file: IO[bytes]) -> bool:
        try:
            fcntl.flock(file.fileno(), fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        except OSError:  # a file system without locks: go on unguarded, as any downloader would
            return True
        return True


def download(
    url: str,
    target: Path,
    *,
    sha256: str | None = None,
    size: int | None = None,
    token: str | None = None,
    label: str | None = None,
    progress: Progress = silent,
) -> Path:
    """Bring `url` to `target` and return it; what is there already and right is kept.

    Call it with the lock of `target` held if others may fetch the same file.

    Raises:
        ModelError: it cannot be had, or its hash or size is not the expected one.
    """
    if verified(target, sha256, size):
        return target
    what = label or target.name
    part = target.with_name(target.name + ".part")
    target.parent.mkdir(parents=True, exist_ok=True)
    for attempt in range(_ATTEMPTS):
        try:
            _transfer(url, part, size, token, what, progress)
            break
        except ModelError as error:
            cause = error.__cause__
            permanent = isinstance(cause, urllib.error.HTTPError) and cause.code < 500
            if attempt + 1 == _ATTEMPTS or permanent or not isinstance(cause, (OSError, http.client.HTTPException)):
                raise
            _log.info("%s; trying again", error)
            time.sleep(0.5 * 2**attempt)
    found = part.stat().st_size
    if size is not None and found != size:
        part.unlink(missing_ok=True)
        raise ModelError(f"{public_url(url)} gave {found} bytes where {size} were expected")
    digest = sha256_file(part, lambda done: progress(f"checking {what}", done, found))
    if sha256 is not None and digest != sha256:
        part.unlink(missing_ok=True)
        raise ModelError(f"{public_url(url)} is not the expected file: its SHA-256 is {digest}, not {sha256}")
    part.replace(target)
    write_stamp(target, digest)
    return target


def _transfer(url: str, part: Path, size: int | None, token: str | None, what: str, progress: Progress) -> None:
    """Fill `part`, going on where an earlier try stopped."""
    have = part.stat().st_size if part.exists() else 0
    if size is not None and have == size:
        return
    if size is not None and have > size:
        part.unlink()
        have = 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    request = _request(url, headers, token)
    with _faults(url):
        try:
            reply = urllib.request.urlopen(request, timeout=TIMEOUT_S)  # noqa: S310 - checked in _request
        except urllib.error.HTTPError as error:
            if not have or error.code != http.HTTPStatus.REQUESTED_RANGE_NOT_SATISFIABLE:
                raise
            error.close()
            part.unlink()  # what is there does not belong to this file: start again
            reply = urllib.request.urlopen(_request(url, {}, token), timeout=TIMEOUT_S)  # noqa: S310
        with reply:
            resumed = reply.status == http.HTTPStatus.PARTIAL_CONTENT
            done = have if resumed else 0
            rest = int(reply.headers.get("Content-Length") or 0)
            total = size or (done + rest if rest else 0)
            with part.open("ab" if resumed else "wb") as file:
                while block := reply.read(CHUNK_BYTES):
                    file.write(block)
                    done += len(block)
                    progress(f"fetching {what}", done, total)
                    if size is not None and done > size:
                        break
            if total and done < total:
                raise OSError(f"the connection ended after {done} of {total} bytes")
