"""The functions of ggml that this package calls, as rows of (name, result, arguments).

Considered and left: cffi in ABI mode (one more dependency, and its parser costs 100 ms a start), generated bindings
(thousands of lines for some eighty functions). A row is bound once, when a library is loaded; afterwards a call is one
attribute look-up and one ctypes call, which releases the interpreter lock.

`P` is an address as a plain int: 0 for NULL, in arguments and in results.
"""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Any, NamedTuple

from wireherd.errors import GgmlFailed, UnknownBuild
from wireherd.ggml.builds import SUPPORTED
from wireherd.ggml.structs import POINTER_T as P
from wireherd.ggml.structs import SIZE_T, BufferInterface, InitParams

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

TEXT = ctypes.c_char_p
BOOL = ctypes.c_bool
INT = ctypes.c_int
I64 = ctypes.c_int64
U64 = ctypes.c_uint64
U8 = ctypes.c_uint8


class Row(NamedTuple):
    """One C function. `needed` rows must exist in a library, the others may be missing."""

    name: str
    result: Any
    arguments: tuple[Any, ...] = ()
    needed: bool = True


GGML: tuple[Row, ...] = (
    # who are you
    Row("ggml_version", TEXT, (), needed=False),
    Row("ggml_commit", TEXT, (), needed=False),
    Row("ggml_log_set", None, (P, P)),
    Row("ggml_time_us", I64),
    # names and sizes
    Row("ggml_op_name", P, (INT,)),
    Row("ggml_unary_op_name", P, (INT,)),
    Row("ggml_glu_op_name", P, (INT,)),
    Row("ggml_type_name", P, (INT,)),
    Row("ggml_blck_size", I64, (INT,)),
    Row("ggml_type_size", SIZE_T, (INT,)),
    Row("ggml_nbytes", SIZE_T, (P,)),
    Row("ggml_tensor_overhead", SIZE_T),
    # contexts, tensors, graphs
    Row("ggml_init", P, (InitParams,)),
    Row("ggml_free", None, (P,)),
    Row("ggml_get_no_alloc", BOOL, (P,)),
    Row("ggml_set_no_alloc", None, (P, BOOL)),
    Row("ggml_new_tensor_1d", P, (P, INT, I64)),
    Row("ggml_new_tensor_2d", P, (P, INT, I64, I64)),
    Row("ggml_new_tensor_4d", P, (P, INT, I64, I64, I64, I64)),
    Row("ggml_view_1d", P, (P, P, I64, SIZE_T)),
    Row("ggml_set_name", P, (P, TEXT)),
    Row("ggml_set_output", None, (P,)),
    Row("ggml_add", P, (P, P, P)),
    Row("ggml_mul", P, (P, P, P)),
    Row("ggml_mul_mat", P, (P, P, P)),
    Row("ggml_silu", P, (P, P)),
    Row("ggml_graph_overhead_custom", SIZE_T, (SIZE_T, BOOL)),
    Row("ggml_new_graph_custom", P, (P, SIZE_T, BOOL)),
    Row("ggml_build_forward_expand", None, (P, P)),
    Row("ggml_graph_n_nodes", INT, (P,)),
    Row("ggml_graph_nodes", P, (P,)),
    Row("ggml_graph_size", INT, (P,)),
    Row("ggml_quantize_requires_imatrix", BOOL, (INT,), needed=False),
    Row("ggml_quantize_chunk", SIZE_T, (INT, P, P, I64, I64, I64, P), needed=False),
    # buffer types and buffers
    Row("ggml_backend_buft_name", TEXT, (P,)),
    Row("ggml_backend_buft_alloc_buffer", P, (P, SIZE_T)),
    Row("ggml_backend_buft_get_alignment", SIZE_T, (P,)),
    Row("ggml_backend_buft_get_max_size", SIZE_T, (P,)),
    Row("ggml_backend_buft_get_alloc_size", SIZE_T, (P, P)),
    Row("ggml_backend_buft_is_host", BOOL, (P,)),
    Row("ggml_backend_buft_get_device", P, (P,)),
    Row("ggml_backend_buffer_init", P, (P, BufferInterface, P, SIZE_T)),
    Row("ggml_backend_buffer_free", None, (P,)),
    Row("ggml_backend_buffer_get_base", P, (P,)),
    Row("ggml_backend_buffer_get_size", SIZE_T, (P,)),
    Row("ggml_backend_buffer_init_tensor", INT, (P, P)),
    Row("ggml_backend_buffer_clear", None, (P, U8)),
    Row("ggml_backend_buffer_is_host", BOOL, (P,)),
    Row("ggml_backend_buffer_set_usage", None, (P, INT)),
    Row("ggml_backend_tensor_set", None, (P, P, SIZE_T, SIZE_T)),
    Row("ggml_backend_tensor_get", None, (P, P, SIZE_T, SIZE_T)),
    Row("ggml_backend_tensor_set_2d", None, (P, P, SIZE_T, SIZE_T, SIZE_T, SIZE_T, SIZE_T), needed=False),
    Row("ggml_backend_tensor_get_2d", None, (P, P, SIZE_T, SIZE_T, SIZE_T, SIZE_T, SIZE_T), needed=False),
    Row("ggml_backend_tensor_memset", None, (P, U8, SIZE_T, SIZE_T)),
    Row("ggml_backend_tensor_copy", None, (P, P)),
    # backends
    Row("ggml_backend_free", None, (P,)),
    Row("ggml_backend_synchronize", None, (P,)),
    Row("ggml_backend_graph_compute", INT, (P, P)),
    # devices and registries
    Row("ggml_backend_dev_name", TEXT, (P,)),
    Row("ggml_backend_dev_description", TEXT, (P,)),
    Row("ggml_backend_dev_memory", None, (P, P, P)),
    Row("ggml_backend_dev_type", INT, (P,)),
    Row("ggml_backend_dev_get_props", None, (P, P)),
    Row("ggml_backend_dev_backend_reg", P, (P,)),
    Row("ggml_backend_dev_init", P, (P, TEXT)),
    Row("ggml_backend_dev_buffer_type", P, (P,)),
    Row("ggml_backend_dev_supports_op", BOOL, (P, P)),
    Row("ggml_backend_dev_supports_buft", BOOL, (P, P)),
    Row("ggml_backend_reg_name", TEXT, (P,)),
    Row("ggml_backend_reg_dev_count", SIZE_T, (P,)),
    Row("ggml_backend_reg_dev_get", P, (P, SIZE_T)),
    Row("ggml_backend_reg_get_proc_address", P, (P, TEXT)),
    Row("ggml_backend_reg_count", SIZE_T),
    Row("ggml_backend_reg_get", P, (SIZE_T,)),
    Row("ggml_backend_reg_by_name", P, (TEXT,)),
    Row("ggml_backend_load_all_from_path", None, (TEXT,), needed=False),
    Row("ggml_backend_cpu_reg", P, (), needed=False),
)


class Functions:
    """The bound functions of one library, as attributes of their C names."""

    def __init__(self, path: str, handles: Sequence[ctypes.CDLL], rows: Iterable[Row]) -> None:
        self._path = path
        self._handles = tuple(handles)
        self.bind(rows)

    def bind(self, rows: Iterable[Row]) -> None:
        """Bind `rows`; raises `UnknownBuild` when a needed function is missing."""
        missing = [row.name for row in rows if not self._bind_one(row) and row.needed]
        if missing:
            more = f" and {len(missing) - 1} more functions" if len(missing) > 1 else ""
            raise UnknownBuild(
                f"{self._path} is no ggml library this release can use, for it lacks {missing[0]}{more}: "
                f"install {SUPPORTED}",
            )

    def _bind_one(self, row: Row) -> bool:
        for handle in self._handles:
            try:
                # by item, not by attribute: ctypes then makes a function object of our own,
                # which no other user of the same library can give other argument types
                function = handle[row.name]
            except AttributeError:
                continue
            function.restype = row.result
            function.argtypes = row.arguments
            self.__dict__[row.name] = function
            return True
        return False

    def has(self, name: str) -> bool:
        """Whether the library has this (optional) function."""
        return name in self.__dict__

    def __getattr__(self, name: str) -> Any:
        raise GgmlFailed(f"{self._path} has no function {name}")


def address(function: Any) -> int:
    """The entry point of a bound function, to hand to C as a callback."""
    return ctypes.cast(function, ctypes.c_void_p).value or 0


def prototype(pointer: int, result: Any, *arguments: Any) -> Any:
    """A callable for a C function known by its address (as `get_proc_address` gives it)."""
    return ctypes.CFUNCTYPE(result, *arguments)(pointer)
