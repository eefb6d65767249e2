"""The functions that libllama asks a backend registry for by name, so that devices add up a tensor among themselves.

With `-sm tensor` llama.cpp's meta backend looks for three names (ggml-backend.h: `ggml_backend_comm_init_t`,
`ggml_backend_comm_free_t`, `ggml_backend_comm_allreduce_tensor_t`). Where they are missing, `init` gives NULL, or
`allreduce` says false, it copies the tensors from device to device and adds them there.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, Final

from wireherd.ggml.functions import BOOL
from wireherd.ggml.memory import read_text
from wireherd.ggml.structs import POINTER_T as P
from wireherd.ggml.structs import SIZE_T
from wireherd.ggml.vtable import callback_of

if TYPE_CHECKING:
    from collections.abc import Callable

    from wireherd.ggml.vtable import OnError

#: name → (what it is given and gives, the method that answers, the answer after an exception)
_FUNCTIONS: Final[dict[str, tuple[Any, str, int]]] = {
    "ggml_backend_comm_init": (ctypes.CFUNCTYPE(P, P, SIZE_T), "comm_init", 0),
    "ggml_backend_comm_free": (ctypes.CFUNCTYPE(None, P), "comm_free", 0),
    # true: the tensors are lost anyway, and the next graph says why
    "ggml_backend_comm_allreduce_tensor": (ctypes.CFUNCTYPE(BOOL, P, P), "comm_allreduce", 1),
}


class CollectiveFunctions:
    """The three functions over an object with methods `comm_init`, `comm_free` and `comm_allreduce`.

    Keep it alive as long as C may call.
    """

    def __init__(self, impl: object, on_error: OnError) -> None:
        self._callbacks: dict[str, Any] = {}
        for name, (kind, method, failure) in _FUNCTIONS.items():
            slot: Callable[..., Any] = getattr(impl, method)
            self._callbacks[name] = callback_of(kind, slot, slot=method, failure=failure, on_error=on_error)

    def find(self, name: int) -> int:
        """Address of the function whose NUL-terminated name is at that address, 0 if it is none of the three."""
        found = self._callbacks.get(read_text(name))
        return 0 if found is None else ctypes.cast(found, ctypes.c_void_p).value or 0
