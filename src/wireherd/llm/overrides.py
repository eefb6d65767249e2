"""Where single tensors go: `-ot`, `-cmoe` and `-ncmoe` become rules for libllama, under llama.cpp's names."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from wireherd.errors import UsageError
from wireherd.llm.options import EXPERTS

if TYPE_CHECKING:
    from collections.abc import Sequence

    from wireherd.ggml.library import Library
    from wireherd.llm.device import OffloadDevice
    from wireherd.llm.options import LlamaOptions


def override_targets(lib: Library, devices: Sequence[OffloadDevice], options: LlamaOptions) -> list[tuple[str, int]]:
    """Rules for libllama: regular expression on tensor names, and address of a buffer type; the first match counts.

    A device goes by its own name (RPC0) or by that of its buffer type, as llama.cpp has it (RPC0[10.0.0.2:50052]: the
    number is the device's on its worker).

    Raises:
        UsageError: a rule is not `REGEX=BUFTYPE`, or it names no device in use.
    """
    cpu = lib.cpu_device().buffer_type()
    known = {"cpu": cpu.ptr}
    for device in devices:
        known |= {device.buffer_name.lower(): device.buffer_type, device.name.lower(): device.buffer_type}
    pairs = []
    for rule in options.override_rules:
        pattern, equals, name = rule.rpartition("=")
        if not equals or not pattern:
            raise UsageError(f"-ot takes REGEX=BUFTYPE, not {rule!r}")
        if name.lower() not in known:
            names = ", ".join(["CPU", *(f"{device.name} or {device.buffer_name}" for device in devices)])
            raise UsageError(f"-ot {rule} names no device in use: there are {names}")
        _check(rule, pattern)
        pairs.append((pattern, known[name.lower()]))
    pairs += [(rf"blk\.{layer}{EXPERTS}", cpu.ptr) for layer in range(options.n_cpu_moe)]
    return pairs


def _check(rule: str, pattern: str) -> None:
    """What Python cannot read as a regular expression, C++ cannot either, and says so less clearly."""
    try:
        re.compile(pattern)
    except re.error as error:
        raise UsageError(f"-ot {rule}: {pattern!r} is no regular expression ({error})") from None
