"""Can libllama split this model by tensor? It is asked in a process of its own, because its no is an abort.

What libllama cannot split it notices while it builds a graph, by an assertion that ends the process. So before a real
session is made, a child with the same options loads the model over devices that hold and compute nothing, and decodes
one token and a few: seconds at most, whatever the size of the model, and nothing is sent. The verdict is kept in the
user's cache for this file, this library and this split.

As a program: `python -m wireherd.llm.trial JSON`; exit code 0 says that it can.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import re
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from wireherd import config, ggml
from wireherd.client.blank import BlankDevice
from wireherd.errors import ModelError, WireherdError
from wireherd.ggml.enums import FlashAttention, SplitMode
from wireherd.ggml.llama import Batch, Context, ContextOptions, Model, ModelOptions
from wireherd.obs.log import get_logger

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wireherd.ggml.library import Library
    from wireherd.llm.device import OffloadDevice
    from wireherd.llm.options import LlamaOptions

log = get_logger(__name__)

#: a verdict of another number is asked for again
_FORMAT: Final = 1
_LIMIT_S: Final = 180.0
#: exit code of a child that failed in order: then the real load fails the same way, and says why
_FAILED: Final = 9
_ASSERTION: Final = re.compile(r"GGML_ASSERT\((.*)\) failed")
_FEW: Final = 3
_CONTEXT: Final = 256
#: number of the CPU among the targets of `-ot`
_CPU: Final = -1


@dataclass(frozen=True, slots=True)
class Split:
    """What decides whether a model can be split: how many devices, their shares, and what stays away from them."""

    model: str
    library: str
    memory: tuple[int, ...]
    shares: tuple[float, ...] | None
    n_gpu_layers: int
    type_k: str
    type_v: str
    #: rules of `-ot`: pattern, and number of the device or -1 for the CPU
    overrides: tuple[tuple[str, int], ...]

    @classmethod
    def of(
        cls,
        lib: Library,
        options: LlamaOptions,
        devices: Sequence[OffloadDevice],
        overrides: Sequence[tuple[str, int]],
    ) -> Split:
        """The split that these options make over these devices; `overrides` as libllama gets them."""
        numbers = {device.buffer_type: number for number, device in enumerate(devices)}
        return cls(
            str(options.path.resolve()),
            str(lib.path),
            tuple(device.room.memory_free for device in devices),
            tuple(options.tensor_split) if options.tensor_split else None,
            options.n_gpu_layers,
            options.type_k,
            options.type_v,
            tuple((pattern, numbers.get(target, _CPU)) for pattern, target in overrides),
        )

    def key(self, build: str) -> str:
        """Name of the verdict: changes with the file, the library's build, and the shares in whole percents."""
        told = Path(self.model).stat()
        shares = self.shares or self.memory
        percents = [round(100 * share / (sum(shares) or 1)) for share in shares]
        library = Path(self.library).stat()
        parts = (
            _FORMAT, self.model, told.st_size, told.st_mtime_ns, build, self.library, library.st_mtime_ns,
            len(self.memory), percents, self.n_gpu_layers, self.type_k, self.type_v, self.overrides,
        )  # fmt: skip
        return hashlib.sha256(json.dumps(parts).encode()).hexdigest()[:32]


def check_split(
    lib: Library, options: LlamaOptions, devices: Sequence[OffloadDevice], overrides: Sequence[tuple[str, int]]
) -> None:
    """Find out whether libllama can split the model over these devices, unless that is known.

    Raises:
        ModelError: it cannot; the sentence says what to do instead.
    """
    split = Split.of(lib, options, devices, overrides)
    kept = _kept(split.key(lib.build))
    verdict = _read(kept) if kept is not None else None
    if verdict is None:
        verdict = _try(split)
        if verdict is None:
            return
        if kept is not None:
            _write(kept, verdict)
    if verdict:
        raise ModelError(
            f"llama.cpp cannot split {options.path.name} by tensor ({verdict}): use -sm layer, which splits any model"
        )


def _kept(key: str) -> Path | None:
    try:
        return config.cache_dir("splits") / f"{key}.json"
    except WireherdError as error:
        log.debug("%s", error)
        return None


def _read(kept: Path) -> str | None:
    """A verdict: empty if it can be split, else why not; None if none is kept."""
    try:
        told = json.loads(kept.read_text("utf-8"))
    except (OSError, ValueError):
        return None
    reason = told.get("refused") if isinstance(told, dict) else None
    return reason if isinstance(reason, str) else None


def _write(kept: Path, verdict: str) -> None:
    """Keep a verdict; never half of one."""
    try:
        descriptor, name = tempfile.mkstemp(prefix=".new-", dir=kept.parent)
        with os.fdopen(descriptor, "w", encoding="utf-8") as file:
            json.dump({"refused": verdict}, file)
        Path(name).replace(kept)
    except OSError as error:
        log.debug("the verdict on a split cannot be kept: %s", error)


def _try(split: Split) -> str | None:
    """Ask a child: empty if it can, why not, or None if it could not find out."""
    told = json.dumps({name: getattr(split, name) for name in Split.__slots__})
    command = [sys.executable, "-m", __name__, told]
    environment = {**os.environ, "GGML_NO_BACKTRACE": "1"}  # ggml would start a debugger
    log.info("trying in a process of its own whether %s can be split by tensor", split.model)
    try:
        ended = subprocess.run(  # noqa: S603 (our own module)
            command, stdin=subprocess.DEVNULL, capture_output=True, timeout=_LIMIT_S, env=environment, check=False
        )
    except (OSError, subprocess.TimeoutExpired) as error:
        log.info("it could not be tried: %s", error)
        return None
    words = ended.stderr.decode("utf-8", "replace")
    if ended.returncode in {0, _FAILED}:
        if ended.returncode:
            log.info("the trial failed: %s", words.strip())
            return None
        return ""
    found = _ASSERTION.search(words)
    log.debug("the trial ended with exit code %d: %s", ended.returncode, words)
    return f"its GGML_ASSERT({found[1]}) fails" if found else f"it crashes with exit code {ended.returncode}"


def main(text: str) -> int:
    """Be the child: load, decode one token and a few more; the process may die on the way."""
    _leave_no_core()
    try:
        told: dict[str, Any] = json.loads(text)
        _load(Split(**told))
    except WireherdError as error:
        sys.stderr.write(f"{error}\n")
        return _FAILED
    return 0


def _load(split: Split) -> None:
    lib = ggml.load(split.library)
    lib.start_llama()
    devices = [BlankDevice(lib, number, size) for number, size in enumerate(split.memory)]
    cpu = lib.cpu_device().buffer_type().ptr
    with contextlib.ExitStack() as stack:
        model = Model(
            lib,
            split.model,
            ModelOptions(
                n_gpu_layers=split.n_gpu_layers,
                devices=[device.pointer for device in devices],
                split_mode=SplitMode.TENSOR,
                tensor_split=split.shares,
                use_mmap=True,
                use_extra_bufts=False,
                overrides=[
                    (pattern, devices[number].buffer_type if number != _CPU else cpu)
                    for pattern, number in split.overrides
                ],
            ),
        )
        stack.callback(model.close)
        context = Context(
            model,
            ContextOptions(
                n_ctx=_CONTEXT, n_batch=_CONTEXT, n_ubatch=_CONTEXT, n_threads=1, n_threads_batch=1,
                flash_attn=FlashAttention.ENABLED, type_k=split.type_k, type_v=split.type_v,
            ),
        )  # fmt: skip
        stack.callback(context.close)
        batch = Batch(_CONTEXT)
        batch.one(0, 0)
        context.decode(batch)
        batch.fill([0] * _FEW, 1)
        context.decode(batch)
        context.synchronize()


def _leave_no_core() -> None:
    if sys.platform == "win32":
        return
    import resource  # noqa: PLC0415 (POSIX only)

    resource.setrlimit(resource.RLIMIT_CORE, (0, 0))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1]))
