"""GGUF files from Hugging Face, or a server that answers like it: `-hf user/repo[:quant]`.

The file list of the repository says which files are there, how large they are and their SHA-256; the quantisation is
chosen as llama.cpp does it: the one asked for, else Q4_K_M, else Q8_0, else the first. A model in several files is
fetched whole. Files are named as llama.cpp names them in its cache, so that `LLAMA_CACHE` may be shared with it.

    HF_ENDPOINT   server to ask instead of https://huggingface.co (also MODEL_ENDPOINT, llama.cpp's name)
    HF_TOKEN      access token for gated models
    LLAMA_CACHE   folder to keep the files in instead of our own cache
"""

from __future__ import annotations

import json
import re
import urllib.error
import urllib.parse
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wireherd import config
from wireherd.errors import ModelError, UsageError
from wireherd.llm import fetch
from wireherd.llm.fetch import Progress, silent

if TYPE_CHECKING:
    from collections.abc import Mapping

_ENDPOINT: Final = "https://huggingface.co"
_CACHE_VARIABLE: Final = "LLAMA_CACHE"
_REPOSITORY: Final = re.compile(r"[\w.-]+/[\w.-]+")
_SPLIT: Final = re.compile(r"-(\d{5})-of-(?!0{5})(\d{5})\.gguf$", re.IGNORECASE)
_PREFERRED: Final = ("Q4_K_M", "Q8_0")
_PAGES: Final = 20
_NEXT: Final = re.compile(r'<([^>]+)>\s*;\s*rel="?next"?')


@dataclass(frozen=True, slots=True)
class HubFile:
    """One file of a repository, as its server lists it."""

    path: str
    size: int | None
    sha256: str | None


def parse(spec: str) -> tuple[str, str | None]:
    """Split `user/repo[:quant]`.

    Raises:
        UsageError: it is not of that form.
    """
    repository, _, quant = spec.partition(":")
    if not _REPOSITORY.fullmatch(repository) or ".." in repository:
        raise UsageError(f"{spec!r} does not name a Hugging Face model: write user/repo or user/repo:quant")
    return repository, quant or None


def cache_dir() -> Path:
    """Folder of the fetched files.

    Raises:
        UsageError: it cannot be made.
    """
    if config.setting(_CACHE_VARIABLE):
        return config.cache_dir(variable=_CACHE_VARIABLE)
    return config.cache_dir("models", "hub")


def pull(spec: str, *, progress: Progress = silent, offline: bool = False) -> Path:
    """Return the path of a model's (first) file, fetching what is missing.

    Raises:
        UsageError: `spec` is malformed.
        ModelError: there is no such model, it cannot be fetched, or what came is damaged.
    """
    repository, quant = parse(spec)
    folder = cache_dir()
    if offline:
        return _from_cache(folder, repository, quant)
    token = config.setting("HF_TOKEN")
    chosen = choose(list_files(repository, token), repository, quant)
    paths = []
    for number, file in enumerate(chosen, 1):
        target = folder / local_name(repository, file.path)
        label = target.name if len(chosen) == 1 else f"{target.name} ({number}/{len(chosen)})"
        url = f"{endpoint()}/{repository}/resolve/main/{urllib.parse.quote(file.path)}"
        try:
            with fetch.locked(target.with_name(target.name + ".lock"), progress):
                fetch.download(
                    url, target, sha256=file.sha256, size=file.size, token=token, label=label, progress=progress
                )
        except OSError as error:
            raise ModelError(f"cannot store {target.name} in {folder}: {error.strerror or error}") from error
        paths.append(target)
    return paths[0]


def endpoint() -> str:
    """Return the server to ask, without a slash at its end."""
    return (config.setting("HF_ENDPOINT") or config.setting("MODEL_ENDPOINT") or _ENDPOINT).rstrip("/")


def local_name(repository: str, path: str) -> str:
    """Name a repository's file in the cache as llama.cpp does: user_repo_file."""
    name = f"{repository}/{path}".replace("/", "_").replace("\\", "_")
    if name.startswith("."):
        raise ModelError(f"the repository {repository} has a file of a name that cannot be stored: {path!r}")
    return name


def list_files(repository: str, token: str | None = None) -> list[HubFile]:
    """Ask the server for the files of a repository.

    Raises:
        ModelError: there is no such repository, it is gated, or the answer cannot be read.
    """
    url: str | None = f"{endpoint()}/api/models/{repository}/tree/main?recursive=true"
    files: list[HubFile] = []
    for _ in range(_PAGES):
        if url is None:
            break
        try:
            body, headers, final = fetch.get_page(url, accept="application/json", token=token)
        except ModelError as error:
            code = error.__cause__.code if isinstance(error.__cause__, urllib.error.HTTPError) else 0
            if code in {401, 403, 404}:
                hint = "it does not exist, or it needs an access token: set HF_TOKEN"
                raise ModelError(f"{endpoint()} does not give out the model {repository}: {hint}") from error
            raise
        try:
            files += [_hub_file(entry) for entry in json.loads(body) if entry["type"] == "file"]
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ModelError(f"{endpoint()} sent a file list of {repository} that cannot be read") from error
        url = _next_page(headers, final)
    return files


def _hub_file(entry: Mapping[str, Any]) -> HubFile:
    lfs = entry.get("lfs") or {}
    size = lfs.get("size", entry.get("size"))
    oid = lfs.get("oid")  # for large files: the SHA-256 of the content
    sha256 = str(oid).lower() if oid and re.fullmatch(r"[0-9a-fA-F]{64}", str(oid)) else None
    return HubFile(str(entry["path"]), int(size) if size is not None else None, sha256)


def _next_page(headers: Mapping[str, str], base: str) -> str | None:
    link = next((value for key, value in headers.items() if key.lower() == "link"), "")
    found = _NEXT.search(link)
    if not found:
        return None
    url = urllib.parse.urljoin(base, found.group(1))
    # the token goes along: never to another server
    return url if urllib.parse.urlsplit(url).netloc == urllib.parse.urlsplit(base).netloc else None


def choose(files: list[HubFile], repository: str, quant: str | None) -> list[HubFile]:
    """Pick the file, or all files of a split model, that hold the wanted quantisation.

    Raises:
        ModelError: the repository has no such GGUF file.
    """
    models = sorted(
        (file for file in files if file.path.lower().endswith(".gguf") and "mmproj" not in file.path.lower()),
        key=lambda file: file.path,
    )
    if not models:
        raise ModelError(f"the repository {repository} holds no GGUF file")
    wanted = (quant,) if quant else _PREFERRED
    first = next((hit for name in wanted if (hit := _with_quant(models, name))), None)
    if first is None and quant:
        names = ", ".join(Path(file.path).name for file in models[:12])
        raise ModelError(f"the repository {repository} holds no GGUF file of quantisation {quant}: it has {names}")
    first = first or models[0]
    split = _SPLIT.search(first.path)
    if not split:
        return [first]
    stem = first.path[: split.start()]
    by_path = {file.path: file for file in models}
    parts = [f"{stem}-{number:05}-of-{split.group(2)}.gguf" for number in range(1, int(split.group(2)) + 1)]
    missing = [name for name in parts if name not in by_path]
    if missing:
        raise ModelError(f"the repository {repository} lacks {missing[0]}, a part of a split model")
    return [by_path[name] for name in parts]


def _with_quant(models: list[HubFile], quant: str) -> HubFile | None:
    pattern = re.compile(rf"(?<![A-Za-z0-9]){re.escape(quant)}(?![A-Za-z0-9_])", re.IGNORECASE)
    return next((file for file in models if pattern.search(Path(file.path).name)), None) or next(
        (file for file in models if pattern.search(file.path)), None
    )


def _from_cache(folder: Path, repository: str, quant: str | None) -> Path:
    prefix = repository.replace("/", "_") + "_"
    here = [HubFile(path.name[len(prefix) :], None, None) for path in folder.glob(prefix + "*.gguf")]
    if not here:
        raise ModelError(f"the model {repository} is not in {folder}, and --offline forbids to fetch it")
    return folder / (prefix + choose(here, repository, quant)[0].path)
