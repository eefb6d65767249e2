"""Tensors and graphs of the real library on a remote device, driven through ggml's own functions."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from wireherd.client.plugin import Cluster
from wireherd.ggml import memory
from wireherd.ggml.library import Library
from wireherd.ggml.structs import GraphOffset, InitParams, TensorOffset

F32, F16 = 0, 1


def alike(lib: Library, remote: int, local: int) -> bool:
    return bool(np.array_equal(read(lib, remote), read(lib, local)))


def read(lib: Library, tensor: int, dtype: type = np.float32) -> np.ndarray:
    """All bytes of a tensor, by the blocking get."""
    out = np.zeros(lib.c.ggml_nbytes(tensor), np.uint8)
    lib.c.ggml_backend_tensor_get(tensor, memory.address_of(out), 0, out.nbytes)
    return out.view(dtype)


def write(lib: Library, tensor: int, values: np.ndarray, offset: int = 0) -> None:
    raw = np.ascontiguousarray(values)
    lib.c.ggml_backend_tensor_set(tensor, memory.address_of(raw), offset, raw.nbytes)


class Bench:
    """A ggml context, a buffer of one device's memory, and a backend of it."""

    def __init__(self, lib: Library, device: int, size: int = 1 << 20) -> None:
        self.lib = lib
        self.c = lib.c
        self.device = device
        self.context = self.c.ggml_init(InitParams(1 << 20, 0, True))
        self.buffer_type = self.c.ggml_backend_dev_buffer_type(device)
        self.buffer = self.c.ggml_backend_buft_alloc_buffer(self.buffer_type, size)
        assert self.buffer
        self.base = self.c.ggml_backend_buffer_get_base(self.buffer)
        self.used = 0
        self.backend = self.c.ggml_backend_dev_init(device, None)
        assert self.backend

    def place(self, tensor: int) -> int:
        """Give a tensor memory, as `ggml_backend_tensor_alloc` does."""
        size = self.c.ggml_backend_buft_get_alloc_size(self.buffer_type, tensor)
        memory.write_u64(tensor + TensorOffset.BUFFER, self.buffer)
        memory.write_u64(tensor + TensorOffset.DATA, self.base + self.used)
        self.used += -(-size // 128) * 128
        return tensor

    def tensor(self, *ne: int, kind: int = F32) -> int:
        new = {1: self.c.ggml_new_tensor_1d, 2: self.c.ggml_new_tensor_2d}[len(ne)]
        return self.place(new(self.context, kind, *ne))

    def filled(self, values: np.ndarray, kind: int = F32) -> int:
        tensor = self.tensor(*values.shape[::-1], kind=kind)
        write(self.lib, tensor, values)
        return tensor

    def graph(self, *results: int, uid: int = 0) -> int:
        graph = self.c.ggml_new_graph_custom(self.context, 64, False)
        for result in results:
            self.c.ggml_build_forward_expand(graph, result)
        memory.write_u64(graph + GraphOffset.UID, uid)
        return graph

    def compute(self, graph: int) -> int:
        return self.c.ggml_backend_graph_compute(self.backend, graph)

    def get_async(self, tensor: int) -> np.ndarray:
        """Ask by the backend's own slot, as libllama asks for logits."""
        out = np.full(self.c.ggml_nbytes(tensor), 0xAB, np.uint8)
        ASYNC(self.lib)(self.backend, tensor, memory.address_of(out), 0, out.nbytes)
        return out

    def close_buffer(self) -> None:
        if self.buffer:
            self.c.ggml_backend_buffer_free(self.buffer)
        self.buffer = 0

    def close(self) -> None:
        if self.backend:
            self.c.ggml_backend_free(self.backend)
        self.close_buffer()
        self.c.ggml_free(self.context)
        self.backend = 0


def ASYNC(lib: Library) -> Callable[..., None]:  # noqa: N802 - a row of functions that only tests need
    import ctypes

    handle = ctypes.CDLL(str(lib.path)) if lib.path.is_file() else ctypes.CDLL(str(lib.path / "libggml-base.so"))
    function = handle["ggml_backend_tensor_get_async"]
    function.argtypes = [ctypes.c_size_t] * 5
    function.restype = None
    return function


def bench_on(lib: Library, cluster: Cluster, number: int = 0, size: int = 1 << 20) -> Bench:
    return Bench(lib, cluster.device_pointers[number], size)
