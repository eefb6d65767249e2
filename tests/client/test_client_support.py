"""Which operations are placed on a worker."""

from __future__ import annotations

import dataclasses

import numpy as np
import pytest
from remote_tensors import Bench, bench_on

from wireherd import ggml
from wireherd.bridge.numbering import NumberMap
from wireherd.client.plugin import Cluster
from wireherd.client.support import OpSupport
from wireherd.protocol.numbering import Numbering


@pytest.fixture
def bench(lib: ggml.Library, cluster: Cluster):
    made = bench_on(lib, cluster)
    yield made
    made.close()


@pytest.fixture
def asking(lib: ggml.Library, cluster: Cluster) -> OpSupport:
    """As if the worker ran another build, whose kernels nobody here knows."""
    endpoint = cluster.endpoints[0]
    assert endpoint.hello is not None
    endpoint.hello = dataclasses.replace(endpoint.hello, build="b1")
    return OpSupport(lib, endpoint, cluster.devices[0].facts)


def product(bench: Bench, kind: int = 0, width: int = 32) -> int:
    c = bench.c
    left, right = c.ggml_new_tensor_2d(bench.context, kind, width, 4), c.ggml_new_tensor_2d(bench.context, 0, width, 4)
    return c.ggml_mul_mat(bench.context, left, right)


def test_a_worker_of_our_build_is_not_asked(lib: ggml.Library, cluster: Cluster, bench: Bench) -> None:
    before = cluster.stats()[0]["round_trips"]
    assert lib.c.ggml_backend_dev_supports_op(cluster.device_pointers[0], product(bench))
    assert cluster.stats()[0]["round_trips"] == before


def test_any_other_is_asked_once_a_shape(cluster: Cluster, bench: Bench, asking: OpSupport) -> None:
    before = cluster.stats()[0]["round_trips"]
    assert all(asking(product(bench)) for _ in range(5))
    assert cluster.stats()[0]["round_trips"] == before + 1
    assert asking(product(bench, width=64))
    assert cluster.stats()[0]["round_trips"] == before + 2


def test_a_kernel_that_is_missing(bench: Bench, asking: OpSupport) -> None:
    """F32 times F16 has none on any CPU."""
    c = bench.c
    left, right = c.ggml_new_tensor_2d(bench.context, 0, 32, 4), c.ggml_new_tensor_2d(bench.context, 1, 32, 4)
    assert not asking(c.ggml_mul_mat(bench.context, left, right))


def test_data_and_views_are_everywhere(cluster: Cluster, bench: Bench, asking: OpSupport) -> None:
    before = cluster.stats()[0]["round_trips"]
    tensor = bench.tensor(8)
    assert asking(tensor)
    assert asking(bench.c.ggml_view_1d(bench.context, tensor, 4, 0))
    assert cluster.stats()[0]["round_trips"] == before


def test_what_has_no_number_there_is_not_placed(lib: ggml.Library, cluster: Cluster, bench: Bench) -> None:
    endpoint = cluster.endpoints[0]
    own = Numbering.of(*lib.numbering())
    without = own._replace(ops=tuple("" if name == "MUL_MAT" else name for name in own.ops))
    endpoint.numbers = NumberMap(own, without)
    support = OpSupport(lib, endpoint, cluster.devices[0].facts)
    assert not support(product(bench))
    tensor = bench.tensor(8)
    assert support(bench.c.ggml_add(bench.context, tensor, tensor))


def test_a_lost_worker_can_do_everything(lib: ggml.Library, cluster: Cluster, bench: Bench, asking: OpSupport) -> None:
    """A no about tensors that lie there would make libllama abort; its graph will fail in order instead."""
    cluster.cancel()
    assert asking(product(bench, width=96))


def test_shapes_that_no_operation_makes(lib: ggml.Library, cluster: Cluster, bench: Bench, asking: OpSupport) -> None:
    from wireherd.ggml import memory
    from wireherd.ggml.structs import TensorOffset

    node = product(bench)
    memory.array(node + TensorOffset.NE, 4, np.int64)[1] = 1000
    assert not asking(node)
    assert cluster.failure is None
