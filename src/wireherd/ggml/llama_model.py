"""Model and vocabulary of llama.h. Thin: what goes where is decided elsewhere."""

from __future__ import annotations

import ctypes
from dataclasses import dataclass
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from wireherd.errors import GgmlFailed, ModelError, UsageError
from wireherd.ggml import memory
from wireherd.ggml.enums import LoadMode, SplitMode
from wireherd.ggml.functions import address
from wireherd.ggml.llama_structs import BufferOverride
from wireherd.ggml.vtable import callback_of

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence
    from os import PathLike

    from wireherd.ggml.library import Library

_PROGRESS: Final = ctypes.CFUNCTYPE(ctypes.c_bool, ctypes.c_float, ctypes.c_size_t)


@dataclass(slots=True)
class ModelOptions:
    """`llama_model_params`, as far as it is used here.

    Attributes:
        n_gpu_layers: layers to put on `devices`, from the last one on, the output counting as one; -1 for all.
        devices: addresses of `ggml_backend_device`s to offload to, in this order; an empty list means the CPU only,
            None whatever GPUs the library finds itself.
        tensor_split: shares of the devices, in any unit; None splits by free memory.
        use_mmap: None leaves it to llama.cpp.
        use_extra_bufts: let the CPU keep weights in faster layouts (llama.cpp's `--no-repack` is False).
        no_host: do not use the devices' pinned host memory for what stays on the CPU.
        overrides: (regular expression on tensor names, address of a buffer type): where such tensors go.
        progress: called with 0.0 to 1.0; a false answer, and an exception, stops the loading. The exception is raised
            from `Model` again.
    """

    n_gpu_layers: int = -1
    devices: Sequence[int] | None = None
    split_mode: int = SplitMode.LAYER
    main_gpu: int = 0
    tensor_split: Sequence[float] | None = None
    use_mmap: bool | None = None
    use_extra_bufts: bool = True
    no_host: bool = False
    check_tensors: bool = False
    vocab_only: bool = False
    overrides: Sequence[tuple[str, int]] = ()
    progress: Callable[[float], bool] | None = None


class Vocab:
    """A model's vocabulary; owned by the model."""

    def __init__(self, lib: Library, ptr: int) -> None:
        c = self._c = lib.c
        self.ptr = ptr
        self.n_tokens: int = c.llama_vocab_n_tokens(ptr)
        #: `enum llama_vocab_type`; 0 for a model without one
        self.type: int = c.llama_vocab_type(ptr)
        # -1 where there is no such token
        self.bos: int = c.llama_vocab_bos(ptr)
        self.eos: int = c.llama_vocab_eos(ptr)
        self.eot: int = c.llama_vocab_eot(ptr)
        self.nl: int = c.llama_vocab_nl(ptr)
        self.add_bos: bool = c.llama_vocab_get_add_bos(ptr)
        self.add_eos: bool = c.llama_vocab_get_add_eos(ptr)
        self._room = ctypes.create_string_buffer(256)

    def tokenize(self, text: str | bytes, *, add_special: bool = True, parse_special: bool = False) -> list[int]:
        """Token ids of a text.

        Args:
            text: UTF-8 if it is bytes.
            add_special: put BOS (and EOS) where the model wants them.
            parse_special: read the names of control tokens in the text as those tokens.
        """
        raw = text.encode("utf-8", "surrogatepass") if isinstance(text, str) else text
        size = len(raw) + 8
        for _ in range(2):
            room = np.empty(size, np.int32)
            count = self._c.llama_tokenize(
                self.ptr, raw, len(raw), memory.address_of(room), size, add_special, parse_special
            )
            if count >= 0:
                return [int(token) for token in room[:count]]
            size = -count
        raise GgmlFailed("llama.cpp could not tokenise the text")

    def piece(self, token: int, *, special: bool = False) -> bytes:
        """The bytes of a token, which need not be whole UTF-8 characters; control tokens give b"" unless `special`.

        Raises:
            ValueError: there is no such token.
        """
        if not 0 <= token < self.n_tokens:
            raise ValueError(f"token {token} is not in a vocabulary of {self.n_tokens}")
        for _ in range(2):
            room = self._room
            count = self._c.llama_token_to_piece(self.ptr, token, ctypes.addressof(room), len(room), 0, special)
            if count >= 0:
                return room.raw[:count]
            self._room = ctypes.create_string_buffer(-count)
        raise GgmlFailed(f"llama.cpp could not spell token {token}")

    def text(self, token: int) -> bytes:
        r"""The token as the model's file spells it, such as b"\xc4\xa0the".

        Raises:
            ValueError: there is no such token.
        """
        if not 0 <= token < self.n_tokens:
            raise ValueError(f"token {token} is not in a vocabulary of {self.n_tokens}")
        return self._c.llama_vocab_get_text(self.ptr, token) or b""

    def is_eog(self, token: int) -> bool:
        """Whether generation ends at this token."""
        answer: bool = self._c.llama_vocab_is_eog(self.ptr, token)
        return answer

    def is_control(self, token: int) -> bool:
        """Whether the token is no text."""
        answer: bool = self._c.llama_vocab_is_control(self.ptr, token)
        return answer


class Model:
    """A loaded model.

    Raises:
        UnknownBuild: the library has no llama.cpp that this release knows.
        ModelError: llama.cpp did not load the file; the message has its last words.
    """

    def __init__(self, lib: Library, path: str | PathLike[str], options: ModelOptions | None = None) -> None:
        lib.start_llama()
        self.lib = lib
        self._c = lib.c
        self.path = str(path)
        #: address of the `llama_model`; 0 once closed
        self.ptr = 0
        #: what the parameters point at: libllama copies the struct and looks at some of it later
        self._kept: list[object] = []
        self._load(options or ModelOptions())
        self.vocab = Vocab(lib, self._c.llama_model_get_vocab(self.ptr))

    def _load(self, options: ModelOptions) -> None:
        params = self._c.llama_model_default_params()
        kept = self._kept
        if options.devices is not None:
            devices = (ctypes.c_size_t * (len(options.devices) + 1))(*options.devices, 0)
            kept.append(devices)
            params.devices = ctypes.addressof(devices)
        if options.tensor_split is not None:
            limit = self._c.llama_max_devices()
            if len(options.tensor_split) > limit:
                raise UsageError(f"a tensor split has at most {limit} parts, not {len(options.tensor_split)}")
            shares = (ctypes.c_float * limit)(*options.tensor_split)
            kept.append(shares)
            params.tensor_split = ctypes.addressof(shares)
        if options.overrides:
            table = (BufferOverride * (len(options.overrides) + 1))()
            for entry, (pattern, buft) in zip(table, options.overrides, strict=False):
                entry.pattern = pattern.encode()
                entry.buft = buft
            kept.append(table)
            params.tensor_buft_overrides = ctypes.addressof(table)
        params.n_gpu_layers = options.n_gpu_layers
        params.split_mode = options.split_mode
        params.main_gpu = options.main_gpu
        if options.use_mmap is not None:
            params.load_mode = LoadMode.MMAP if options.use_mmap else LoadMode.NONE
        params.use_extra_bufts = options.use_extra_bufts
        params.no_host = options.no_host
        params.check_tensors = options.check_tensors
        params.vocab_only = options.vocab_only
        raised: list[BaseException] = []
        if options.progress is not None:
            callback = _progress_callback(options.progress, raised)
            kept.append(callback)
            params.progress_callback = address(callback)
        self.lib.log.errors()
        self.ptr = self._c.llama_model_load_from_file(self.path.encode(), params)
        if raised:
            self.close()
            raise raised[0]
        if not self.ptr:
            words = "; ".join(self.lib.log.errors()) or "it gave no reason"
            raise ModelError(f"llama.cpp could not load {self.path}: {words}")

    @property
    def n_layer(self) -> int:
        """Number of layers, the output not counted."""
        return int(self._c.llama_model_n_layer(self.ptr))

    @property
    def n_ctx_train(self) -> int:
        """Context length the model was trained with."""
        return int(self._c.llama_model_n_ctx_train(self.ptr))

    @property
    def n_embd(self) -> int:
        """Width of the model."""
        return int(self._c.llama_model_n_embd(self.ptr))

    @property
    def n_head(self) -> int:
        """Attention heads (of the first layer)."""
        return int(self._c.llama_model_n_head(self.ptr))

    @property
    def n_head_kv(self) -> int:
        """Key and value heads (of the first layer)."""
        return int(self._c.llama_model_n_head_kv(self.ptr))

    @property
    def n_swa(self) -> int:
        """Positions that the layers with a sliding window look back on; 0 for a model without such layers."""
        return int(self._c.llama_model_n_swa(self.ptr))

    @property
    def size(self) -> int:
        """Bytes of all tensors."""
        return int(self._c.llama_model_size(self.ptr))

    @property
    def n_params(self) -> int:
        """Number of parameters."""
        return int(self._c.llama_model_n_params(self.ptr))

    @property
    def is_recurrent(self) -> bool:
        """Whether the model, or some of its layers, keeps a state that cannot be cut back."""
        return bool(self._c.llama_model_is_recurrent(self.ptr) or self._c.llama_model_is_hybrid(self.ptr))

    @property
    def has_encoder(self) -> bool:
        """Whether the model wants an encoder pass first."""
        return bool(self._c.llama_model_has_encoder(self.ptr))

    @property
    def desc(self) -> str:
        """A short description, as llama-bench prints it: "llama 135M Q4_1"."""
        return _text(partial(self._c.llama_model_desc, self.ptr)) or ""

    def meta(self, key: str) -> str | None:
        """One value of the file's metadata as text; None if there is no such key."""
        return _text(partial(self._c.llama_model_meta_val_str, self.ptr, key.encode()))

    def metadata(self) -> dict[str, str]:
        """All scalar and text metadata of the file."""
        c = self._c
        found = {}
        for index in range(c.llama_model_meta_count(self.ptr)):
            key = _text(partial(c.llama_model_meta_key_by_index, self.ptr, index))
            value = _text(partial(c.llama_model_meta_val_str_by_index, self.ptr, index))
            if key is not None:
                found[key] = value or ""
        return found

    def chat_template(self, name: str | None = None) -> str | None:
        """The jinja2 chat template in the file (or the named one); None if it has none."""
        raw = self._c.llama_model_chat_template(self.ptr, name.encode() if name else None)
        return None if raw is None else raw.decode("utf-8", "replace")

    def close(self) -> None:
        """Free the model; its contexts must be closed before."""
        if self.ptr:
            self._c.llama_model_free(self.ptr)
            self.ptr = 0
        self._kept.clear()


def _progress_callback(progress: Callable[[float], bool], raised: list[BaseException]) -> Any:
    return callback_of(
        _PROGRESS,
        lambda share, _data: bool(progress(share)),
        slot="progress",
        failure=0,
        on_error=lambda _slot, error: raised.append(error),
    )


def _text(fill: Callable[[int, int], int]) -> str | None:
    """Call a function that writes text like snprintf, with a larger room the second time if need be."""
    size = 256
    for _ in range(2):
        room = ctypes.create_string_buffer(size)
        count = fill(ctypes.addressof(room), size)
        if count < 0:
            return None
        if count < size:
            return room.raw[:count].decode("utf-8", "replace")
        size = count + 1
    return None
