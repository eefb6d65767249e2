"""Our client and a worker that answers as each stock version: what is placed there, and what is not."""

from __future__ import annotations

import ctypes

import pytest
from remote_tensors import bench_on

from support.workers import Worker
from wireherd import ggml
from wireherd.client.plugin import Cluster
from wireherd.protocol.numbering_data import GLU_OPS
from wireherd.protocol.version import SUPPORTED, Version


@pytest.mark.parametrize("version", SUPPORTED, ids=str)
def test_an_operation_that_the_version_lacks_is_not_placed(lib: ggml.Library, version: Version) -> None:
    """SWIGLU_CLAMP came with 7.0; the numbers of everything else are translated, UNARY moved by five since 3.6."""
    worker = Worker("--plain", "--protocol", version.short)
    glu = ctypes.CDLL(str(lib.path))["ggml_glu"]
    glu.restype, glu.argtypes = ctypes.c_void_p, [ctypes.c_void_p, ctypes.c_void_p, ctypes.c_int, ctypes.c_bool]
    try:
        with Cluster(lib, [worker.endpoint]) as cluster:
            assert cluster.stats()[0]["protocol"] == version.short
            bench = bench_on(lib, cluster)
            tensor = bench.tensor(8)

            def placed(name: str) -> bool:
                node = glu(bench.context, tensor, GLU_OPS.index(name), False)
                return bool(lib.c.ggml_backend_dev_supports_op(cluster.device_pointers[0], node))

            assert placed("SWIGLU")
            assert placed("SWIGLU_CLAMP") == (version >= (7, 0))
            bench.close()
    finally:
        worker.stop()
