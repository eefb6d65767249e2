"""How a ggml library numbers operations, activations and types, as JSON; in a process of its own.

library_numbers.py LIBRARY OPS UNARY GLU TYPES      how many names of each kind
"""

from __future__ import annotations

import ctypes
import json
import sys


def names(library: ctypes.CDLL, function: str, count: int) -> list[str]:
    call = getattr(library, function)
    call.restype = ctypes.c_char_p
    call.argtypes = [ctypes.c_int]
    return [call(number).decode() for number in range(count)]


if __name__ == "__main__":
    library = ctypes.CDLL(sys.argv[1])
    functions = ("ggml_op_name", "ggml_unary_op_name", "ggml_glu_op_name", "ggml_type_name")
    print(json.dumps([names(library, name, int(count)) for name, count in zip(functions, sys.argv[2:], strict=True)]))
