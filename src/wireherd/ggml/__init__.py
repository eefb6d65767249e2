"""The native library: the only room with ctypes.

It finds ggml and llama.cpp, proves their layouts, and gives them to the rest of the package as typed functions
(`functions.py`), struct layouts (`structs.py`), owners with `close()` (`handles.py`, `graph.py`, `llama.py`) and
guarded callbacks (`vtable.py`). It must never know a message, a socket or a worker, and never touch memory by an
address that came from the network.

Start at `library.load`; then `handles.py` for a worker, `vtable.py` and `memory.py` for a client, `llama.py` for a
model session.
"""

from wireherd.ggml.graph import BuiltGraph, build_graph
from wireherd.ggml.handles import NativeBackend, NativeBuffer, NativeBufferType, NativeDevice
from wireherd.ggml.library import Library, load
from wireherd.ggml.structs import TENSOR

__all__ = [
    "TENSOR",
    "BuiltGraph",
    "Library",
    "NativeBackend",
    "NativeBuffer",
    "NativeBufferType",
    "NativeDevice",
    "build_graph",
    "load",
]
