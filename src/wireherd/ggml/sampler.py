"""Samplers of llama.h. Thin: what to chain, and in which order, is decided elsewhere."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Final

import numpy as np

from wireherd.errors import GgmlFailed
from wireherd.ggml import memory
from wireherd.ggml.enums import DEFAULT_SEED

if TYPE_CHECKING:
    from collections.abc import Sequence

    from numpy.typing import NDArray

    from wireherd.ggml.library import Library
    from wireherd.ggml.llama import Context

#: `llama_token_data` of llama.h
_CANDIDATE: Final = np.dtype([("id", np.int32), ("logit", np.float32), ("p", np.float32)])


class _Candidates(ctypes.Structure):
    """`llama_token_data_array` of llama.h."""

    _fields_ = (
        ("data", ctypes.c_void_p),
        ("size", ctypes.c_size_t),
        ("selected", ctypes.c_int64),
        ("is_sorted", ctypes.c_bool),
    )


class Sampler:
    """One sampler, owned by whoever made it until it is given to a chain."""

    def __init__(self, lib: Library, ptr: int) -> None:
        if not ptr:
            raise GgmlFailed("llama.cpp could not make a sampler")
        self._c = lib.c
        #: address of the `llama_sampler`; 0 once closed or given away
        self.ptr = ptr

    def sample(self, context: Context, index: int = -1) -> int:
        """Choose a token from the logits of output `index` (-1: the last) and accept it.

        Raises:
            GgmlFailed: no logits were asked for at `index`.
        """
        if not context.samples_itself and not self._c.llama_get_logits_ith(context.ptr, index):
            raise GgmlFailed(f"there are no logits at position {index} of the batch")
        token: int = self._c.llama_sampler_sample(self.ptr, context.ptr, index)
        return token

    def shape(self, logits: NDArray[np.float32]) -> tuple[NDArray[np.int32], NDArray[np.float32]]:
        """Apply the sampler to logits f4[n_vocab] without choosing or accepting a token.

        Returns:
            ids i4[n] of the tokens that are left, and their logits f4[n] as they are now, in no certain order.
        """
        table = np.empty(len(logits), _CANDIDATE)
        table["id"] = np.arange(len(logits), dtype=np.int32)
        table["logit"] = logits
        table["p"] = 0.0
        candidates = _Candidates(memory.address_of(table), len(table), -1, False)
        self._c.llama_sampler_apply(self.ptr, ctypes.addressof(candidates))
        left = candidates.size
        if candidates.data == memory.address_of(table):
            return table["id"][:left].copy(), table["logit"][:left].copy()
        found = memory.array(candidates.data or 0, left * _CANDIDATE.itemsize, np.uint8).view(_CANDIDATE)
        return found["id"].copy(), found["logit"].copy()

    def accept(self, token: int) -> None:
        """Tell the sampler of a token that was not sampled by it (a prompt's, for penalties)."""
        self._c.llama_sampler_accept(self.ptr, token)

    def reset(self) -> None:
        """Forget what was accepted."""
        self._c.llama_sampler_reset(self.ptr)

    def close(self) -> None:
        """Free the sampler."""
        if self.ptr:
            self._c.llama_sampler_free(self.ptr)
            self.ptr = 0


def greedy(lib: Library) -> Sampler:
    """The most likely token."""
    return Sampler(lib, lib.c.llama_sampler_init_greedy())


def dist(lib: Library, seed: int = DEFAULT_SEED) -> Sampler:
    """A random token by its probability; `DEFAULT_SEED` draws a random seed."""
    return Sampler(lib, lib.c.llama_sampler_init_dist(seed & 0xFFFFFFFF))


def top_k(lib: Library, k: int) -> Sampler:
    """Keep the `k` most likely tokens; 0 or less keeps all."""
    return Sampler(lib, lib.c.llama_sampler_init_top_k(k))


def top_p(lib: Library, p: float, min_keep: int = 1) -> Sampler:
    """Keep the fewest tokens whose probabilities add up to `p`."""
    return Sampler(lib, lib.c.llama_sampler_init_top_p(p, min_keep))


def min_p(lib: Library, p: float, min_keep: int = 1) -> Sampler:
    """Keep the tokens at least `p` times as likely as the most likely one."""
    return Sampler(lib, lib.c.llama_sampler_init_min_p(p, min_keep))


def temp(lib: Library, temperature: float) -> Sampler:
    """Divide the logits; 0 or less keeps the most likely token only."""
    return Sampler(lib, lib.c.llama_sampler_init_temp(temperature))


def penalties(
    lib: Library,
    n_vocab: int,
    last_n: int,
    repeat: float = 1.0,
    frequency: float = 0.0,
    presence: float = 0.0,
) -> Sampler:
    """Push down tokens among the last `last_n` accepted ones; a `last_n` of 0 or less, and 1, 0, 0, do nothing.

    llama.cpp's `--repeat-last-n -1` means the size of the context: its programs replace it, its library does not.
    """
    return Sampler(lib, lib.c.llama_sampler_init_penalties(n_vocab, last_n, repeat, frequency, presence))


def chain(lib: Library, samplers: Sequence[Sampler]) -> Sampler:
    """Samplers one after the other; the chain owns them from here on."""
    params = lib.c.llama_sampler_chain_default_params()
    whole = Sampler(lib, lib.c.llama_sampler_chain_init(params))
    for sampler in samplers:
        lib.c.llama_sampler_chain_add(whole.ptr, sampler.ptr)
        sampler.ptr = 0
    return whole
