"""Batch and context of llama.h: what runs a model. Thin and without policy."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, NamedTuple

import numpy as np

from wireherd.errors import GgmlFailed, UsageError
from wireherd.ggml import memory
from wireherd.ggml.enums import KV_TYPES, FlashAttention
from wireherd.ggml.handles import Switch
from wireherd.ggml.llama_structs import Batch as BatchStruct
from wireherd.ggml.llama_structs import SamplerSequence

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import ArrayLike, NDArray

    from wireherd.ggml.llama_model import Model
    from wireherd.ggml.sampler import Sampler


@dataclass(slots=True)
class ContextOptions:
    """`llama_context_params`, as far as it is used here. `n_ctx` 0 means what the model was trained with.

    Attributes:
        n_threads: for single tokens; `n_threads_batch` None means the same.
        type_k: type of the K cache, a name of `enums.KV_TYPES`.
        type_v: type of the V cache; a quantised one needs flash attention.
        samplers: (sequence id, sampler chain) that may run on the devices; they must outlive the context.
    """

    n_ctx: int = 0
    n_batch: int = 2048
    n_ubatch: int = 512
    n_seq_max: int = 1
    n_threads: int = 4
    n_threads_batch: int | None = None
    flash_attn: int = FlashAttention.AUTO
    type_k: str = "f16"
    type_v: str = "f16"
    offload_kqv: bool = True
    op_offload: bool = True
    swa_full: bool = True
    kv_unified: bool = False
    no_perf: bool = True
    samplers: Sequence[tuple[int, Sampler]] = ()


class Perf(NamedTuple):
    """`llama_perf_context_data`: milliseconds and counts since the last reset; zeros with `no_perf`."""

    load_ms: float
    prompt_ms: float
    generate_ms: float
    n_prompt: int
    n_generate: int
    n_reused: int


class Batch:
    """A reusable `llama_batch` of tokens; its arrays are numpy's, so filling it is vectorised.

    `tokens`, `positions`, `sequences` (one sequence a token) and `outputs` (1: logits wanted) may also be written to
    directly, up to `count`.
    """

    def __init__(self, capacity: int) -> None:
        self.capacity = capacity
        self.tokens: NDArray[np.int32] = np.zeros(capacity, np.int32)
        self.positions: NDArray[np.int32] = np.zeros(capacity, np.int32)
        self.sequences: NDArray[np.int32] = np.zeros(capacity, np.int32)
        self.outputs: NDArray[np.int8] = np.zeros(capacity, np.int8)
        self._n_seq = np.ones(capacity, np.int32)
        first = memory.address_of(self.sequences)
        self._seq_pointers = np.arange(capacity, dtype=np.uint64) * np.uint64(4) + np.uint64(first)
        self.struct = BatchStruct(
            0,
            memory.address_of(self.tokens),
            0,
            memory.address_of(self.positions),
            memory.address_of(self._n_seq),
            memory.address_of(self._seq_pointers),
            memory.address_of(self.outputs),
        )

    @property
    def count(self) -> int:
        """Number of tokens in the batch."""
        return int(self.struct.n_tokens)

    @count.setter
    def count(self, value: int) -> None:
        if not 0 <= value <= self.capacity:
            raise ValueError(f"{value} tokens do not fit a batch of {self.capacity}")
        self.struct.n_tokens = value

    def one(self, token: int, position: int, sequence: int = 0) -> None:
        """Make it a batch of one token whose logits are wanted."""
        self.tokens[0] = token
        self.positions[0] = position
        self.sequences[0] = sequence
        self.outputs[0] = 1
        self.struct.n_tokens = 1

    def fill(
        self,
        tokens: ArrayLike,
        position: int,
        *,
        outputs: str | ArrayLike = "last",
        sequence: int = 0,
    ) -> None:
        """Make it a batch of adjoining tokens of one sequence.

        Args:
            tokens: ids, at most `capacity`.
            position: of the first one.
            outputs: where logits are wanted: "last", "all", "none", or a flag for each token.
            sequence: its id.
        """
        ids = np.asarray(tokens, np.int32)
        n = self.count = len(ids)
        self.tokens[:n] = ids
        self.positions[:n] = np.arange(position, position + n)
        self.sequences[:n] = sequence
        if isinstance(outputs, str):
            self.outputs[:n] = outputs == "all"
            if outputs == "last" and n:
                self.outputs[n - 1] = 1
        else:
            self.outputs[:n] = np.asarray(outputs) != 0


class Context:
    """A KV cache and the buffers to run a model.

    Raises:
        GgmlFailed: llama.cpp could not make it; the message has its last words.
        UsageError: a cache type that does not exist.
    """

    def __init__(self, model: Model, options: ContextOptions | None = None) -> None:
        wanted = options or ContextOptions()
        self.model = model
        self._c = model.lib.c
        self._switch = Switch(model.lib)
        self._n_vocab = model.vocab.n_tokens
        self._decode = self._c.llama_decode
        self._logits = self._c.llama_get_logits_ith
        #: whether samplers were given to the context, so that logits may not come back at all
        self.samples_itself = bool(wanted.samplers)
        #: address of the `llama_context`; 0 once closed
        self.ptr: int = 0
        self._samplers = (SamplerSequence * len(wanted.samplers))()
        for entry, (sequence, sampler) in zip(self._samplers, wanted.samplers, strict=True):
            entry.seq_id = sequence
            entry.sampler = sampler.ptr
        model.lib.log.errors()
        self.ptr = self._c.llama_init_from_model(model.ptr, self._params(wanted))
        if not self.ptr:
            self._switch.close()
            words = "; ".join(model.lib.log.errors()) or "it gave no reason"
            raise GgmlFailed(f"llama.cpp could not make a context of {wanted.n_ctx} tokens: {words}")
        self.n_ctx: int = self._c.llama_n_ctx(self.ptr)
        self.n_batch: int = self._c.llama_n_batch(self.ptr)
        self.n_ubatch: int = self._c.llama_n_ubatch(self.ptr)
        self._memory: int = self._c.llama_get_memory(self.ptr)

    def _params(self, options: ContextOptions) -> Any:
        params = self._c.llama_context_default_params()
        for name in ("n_ctx", "n_batch", "n_ubatch", "n_seq_max", "n_threads"):
            setattr(params, name, getattr(options, name))
        params.n_threads_batch = options.n_threads if options.n_threads_batch is None else options.n_threads_batch
        params.flash_attn_type = options.flash_attn
        for name in ("type_k", "type_v"):
            kind = getattr(options, name)
            if kind not in KV_TYPES:
                raise UsageError(f"{kind} is no type for a KV cache: choose from {', '.join(KV_TYPES)}")
            setattr(params, name, KV_TYPES[kind])
        for name in ("offload_kqv", "op_offload", "swa_full", "kv_unified", "no_perf"):
            setattr(params, name, getattr(options, name))
        params.abort_callback = self._switch.callback
        params.abort_callback_data = self._switch.data
        if options.samplers:
            params.samplers = ctypes.addressof(self._samplers)
            params.n_samplers = len(self._samplers)
        return params

    def decode(self, batch: Batch) -> int:
        """Run a batch of at most `n_batch` tokens.

        Returns:
            llama.cpp's status: 0 done; 1 no room in the KV cache; 2 aborted; -1 a senseless batch; below that a
            failure of a backend (-3: a graph failed), after which the context can only be closed.

        Raises:
            ValueError: more tokens than `n_batch`, on which llama.cpp would end the process.
        """
        if batch.struct.n_tokens > self.n_batch:
            raise ValueError(f"{batch.count} tokens in a batch, and the context takes {self.n_batch}")
        status: int = self._decode(self.ptr, batch.struct)
        return status

    def synchronize(self) -> None:
        """Wait until all results are in this process's memory."""
        self._c.llama_synchronize(self.ptr)

    def logits(self, index: int = -1) -> NDArray[np.float32]:
        """Logits f4[n_vocab] of token `index` of the last batch (-1: the last output), as a view until the next decode.

        Raises:
            GgmlFailed: none were asked for there.
        """
        where = self._logits(self.ptr, index)
        if not where:
            raise GgmlFailed(f"there are no logits at position {index} of the batch")
        return memory.array(where, self._n_vocab, np.float32)

    def sampled(self, index: int = -1) -> int:
        """The token that a sampler of the context chose on its device; -1 if none did."""
        token: int = self._c.llama_get_sampled_token_ith(self.ptr, index)
        return token

    def set_threads(self, single: int, batch: int) -> None:
        """Threads of the CPU backend for single tokens and for batches."""
        self._c.llama_set_n_threads(self.ptr, single, batch)

    def clear(self, *, data: bool = True) -> None:
        """Empty the KV cache; `data` also zeroes its memory."""
        self._c.llama_memory_clear(self._memory, data)

    def remove(self, sequence: int, start: int, end: int) -> bool:
        """Drop positions `start` to `end` (-1: open) of a sequence (-1: all); False if the model cannot do it."""
        answer: bool = self._c.llama_memory_seq_rm(self._memory, sequence, start, end)
        return answer

    def copy(self, source: int, destination: int, start: int = -1, end: int = -1) -> None:
        """Let a sequence share the cache of another."""
        self._c.llama_memory_seq_cp(self._memory, source, destination, start, end)

    def last_position(self, sequence: int = 0) -> int:
        """Largest position of a sequence in the cache; -1 if it is empty."""
        position: int = self._c.llama_memory_seq_pos_max(self._memory, sequence)
        return position

    def perf(self) -> Perf:
        """Times and counts since the last `reset_perf`."""
        data = self._c.llama_perf_context(self.ptr)
        return Perf(data.t_load_ms, data.t_p_eval_ms, data.t_eval_ms, data.n_p_eval, data.n_eval, data.n_reused)

    def reset_perf(self) -> None:
        """Start counting anew."""
        self._c.llama_perf_context_reset(self.ptr)

    def abort(self) -> None:
        """Stop the running decode (it returns 2) and all later ones, from any thread; a CPU stops at its next node."""
        self._switch.set(True)

    def clear_abort(self) -> None:
        """Let decodes run again."""
        self._switch.set(False)

    def close(self) -> None:
        """Free the context."""
        if self.ptr:
            self._c.llama_free(self.ptr)
            self.ptr = 0
            self._switch.close()
