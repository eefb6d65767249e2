"""Client and worker keep the same graphs without a word between them: both ends for real, only the wire left out."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest
from building import HERD, Builder, alloc, do, fetch, herd_dispatcher, put, record
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, precondition, rule, run_state_machine_as_test

from wireherd import ggml
from wireherd.bridge.gather import Handles, Snapshot, to_wire
from wireherd.bridge.numbering import NumberMap
from wireherd.client.backend import RemoteBackends
from wireherd.client.graphs import CONTENT_BIT, GraphCache
from wireherd.errors import BadRequest, NotAllowed
from wireherd.ggml import memory
from wireherd.ggml.structs import GraphOffset, TensorOffset
from wireherd.protocol.kept import Policy, Rule
from wireherd.protocol.messages_graph import GraphCacheSizeRequest, GraphCacheSizeResponse
from wireherd.protocol.messages_stock import FreeBufferRequest
from wireherd.protocol.numbering import Numbering
from wireherd.protocol.table import BY_MESSAGE, Opcode
from wireherd.worker.dispatch import Dispatcher

FLOATS = 16
#: a buffer holds the sum of each graph of a context and, first of all, the context's own input
GRAPHS = 6
ROOM = FLOATS * 4 * (GRAPHS * 4 + 1) + 64


class Line:
    """What a backend needs of an endpoint and its session; commands are carried out at once."""

    def __init__(self, worker: Dispatcher, rule_: Rule, devices: int) -> None:
        numbering = Numbering.of(*ggml.load().numbering())
        self.failure = self.refusal = None
        self.lock = threading.RLock()
        self.handles = Handles()
        self.dialect = HERD
        self.session = self
        self.graphs = [GraphCache(rule_, f"device {index}") for index in range(devices)]
        self._worker = worker
        self._numbers = NumberMap(numbering, numbering)

    def on_error(self, slot: str, error: BaseException) -> None:
        raise AssertionError(slot) from error

    def wire_graph(self, snapshot: Snapshot) -> Any:
        return to_wire(snapshot, HERD.tensor_dtype, self.handles, self._numbers)

    def post(self, message: Any, *, flush: bool = False) -> None:
        del flush
        do(self._worker, BY_MESSAGE[type(message)].opcode, message)

    def prepare(self, message: Any) -> Any:
        return message

    def repeat(self, message: Any) -> None:
        self.post(message)


class Context:
    """A context of libllama: memory of its own beside the model's, and graphs that use both."""

    def __init__(self, ends: Ends, device: int, weights: Memory, value: int) -> None:
        self.device = device
        self.weights = weights
        self.memory = Memory(ends, device)
        self.graphs: list[tuple[int, int, float]] = []
        build = ends.build
        own = self.memory.tensor(build, value)
        for number in range(GRAPHS):
            total = build.call("ggml_add", weights.input, own)
            self.memory.place(total)
            for _ in range(number % 3):
                total = build.call("ggml_add", total, own)
                self.memory.place(total)
            graph = build.lib.c.ggml_new_graph_custom(build._context, 8, False)
            build.lib.c.ggml_build_forward_expand(graph, total)
            for index in range(memory.read_i32(graph + GraphOffset.N_NODES)):
                node = memory.read_u64(memory.read_u64(graph + GraphOffset.NODES) + 8 * index)
                memory.write_i32(node + TensorOffset.FLAGS, 16)
            memory.write_u64(graph + GraphOffset.UID, 0 if number == GRAPHS - 1 else ends.next_uid())
            self.graphs.append((graph, total, 1.0 + value * (1 + number % 3)))


class Memory:
    """A buffer at both ends."""

    def __init__(self, ends: Ends, device: int) -> None:
        self.ends = ends
        self.handle, self.base = alloc(ends.worker, ROOM, device)
        self.pointer = ends.next_pointer()
        self.used = 0
        ends.line.handles.add(self.pointer, self.handle)
        self.input = 0

    def place(self, tensor: int) -> int:
        memory.write_u64(tensor + TensorOffset.BUFFER, self.pointer)
        memory.write_u64(tensor + TensorOffset.DATA, self.base + self.used)
        self.used += FLOATS * 4
        return tensor

    def row(self, tensor: int) -> Any:
        return record(self.handle, memory.read_u64(tensor + TensorOffset.DATA), FLOATS)

    def tensor(self, build: Builder, value: float) -> int:
        tensor = self.place(build.tensor("f32", FLOATS))
        put(self.ends.worker, self.row(tensor), np.full(FLOATS, value, np.float32))
        return tensor

    def free(self) -> None:
        """As `RemoteBuffers.free_buffer` and `Endpoint.drop_buffer` do."""
        line = self.ends.line
        line.handles.remove(self.pointer)
        for graphs in line.graphs:
            graphs.freed(self.handle)
        line.post(FreeBufferRequest(self.handle))


class Ends:
    """A worker with two devices and a client of it."""

    def __init__(self, count: int, policy: Policy, nbytes: int) -> None:
        self.worker = herd_dispatcher(devices=("CPU", "CPU"), graph_cache_limit=5, graph_cache_bytes=nbytes)
        self.build = Builder()
        answer = do(self.worker, Opcode.GRAPH_CACHE_SIZE, GraphCacheSizeRequest(count, policy))
        assert answer == GraphCacheSizeResponse(min(count, 5), nbytes)
        self.line = Line(self.worker, Rule(answer.count, answer.nbytes, policy), 2)
        self.backends = [RemoteBackends(self.build.lib, self.line, index, b"x\0") for index in range(2)]
        self._uid = 0
        self._pointer = 1 << 40
        self._pointers: list[int] = []

    def next_uid(self) -> int:
        self._uid += 1
        return self._uid

    def next_pointer(self) -> int:
        """An address for a buffer here; those of freed ones come back, as malloc's do."""
        if self._pointers:
            return self._pointers.pop()
        self._pointer += 4096
        return self._pointer

    def free(self, buffer: Memory) -> None:
        buffer.free()
        self._pointers.append(buffer.pointer)

    def run(self, context: Context, number: int) -> None:
        graph, total, expected = context.graphs[number]
        row = context.memory.row(total)
        put(self.worker, row, np.zeros(FLOATS, np.float32))
        assert self.backends[context.device].graph_compute(0, graph) == 0
        assert np.frombuffer(fetch(self.worker, row, FLOATS * 4), np.float32).tolist() == [expected] * FLOATS

    def compare(self) -> None:
        for index, store in enumerate(self.line.graphs):
            ours = store._kept
            cache = self.worker.state.graphs._caches.get(index)
            if cache is None:
                assert not ours.uids
                assert not ours._seen
                continue
            theirs = cache.rule
            assert ours.rule == theirs.rule
            assert ours.uids == theirs.uids, "in the same order"
            assert list(ours._seen.items()) == list(theirs._seen.items())
            assert ours.nbytes == theirs.nbytes
            assert set(cache.graphs) == set(ours.uids)
            assert len(ours) <= ours.rule.graphs
            assert ours.nbytes <= ours.rule.nbytes or len(ours) == 1

    def close(self) -> None:
        self.worker.close()
        self.build.close()


class Machine(RuleBasedStateMachine):
    """Contexts of a target and a draft come, run their graphs and go, on two devices."""

    @initialize(count=st.integers(0, 7), policy=st.sampled_from([Policy.RESET, Policy.LRU]), nbytes=st.integers(1, 9))
    def begin(self, count: int, policy: Policy, nbytes: int) -> None:
        self.ends = Ends(count, policy, nbytes * 1000)
        self.models = [self.model(index) for index in (0, 0, 1)]
        self.contexts: list[Context] = []
        self.made = 0

    def model(self, device: int) -> Memory:
        weights = Memory(self.ends, device)
        weights.input = weights.tensor(self.ends.build, 1.0)
        return weights

    @precondition(lambda self: len(self.contexts) < 4)
    @rule(model=st.integers(0, 2))
    def open(self, model: int) -> None:
        self.made += 1
        self.contexts.append(Context(self.ends, model // 2, self.models[model], self.made))

    @precondition(lambda self: self.contexts)
    @rule(context=st.integers(0, 3), numbers=st.lists(st.integers(0, GRAPHS - 1), min_size=1, max_size=8))
    def decode(self, context: int, numbers: list[int]) -> None:
        for number in numbers:
            self.ends.run(self.contexts[context % len(self.contexts)], number)
        self.ends.compare()

    @precondition(lambda self: self.contexts)
    @rule(context=st.integers(0, 3))
    def decode_all_twice(self, context: int) -> None:
        self.decode(context, [*range(GRAPHS), *range(GRAPHS)])

    @precondition(lambda self: self.contexts)
    @rule(context=st.integers(0, 3))
    def close_context(self, context: int) -> None:
        self.ends.free(self.contexts.pop(context % len(self.contexts)).memory)
        self.ends.compare()

    @rule(model=st.integers(0, 2))
    def reload(self, model: int) -> None:
        """The weights go first, as when a model is freed before its contexts; their graphs never run again."""
        gone = [context for context in self.contexts if context.weights is self.models[model]]
        self.ends.free(self.models[model])
        self.ends.compare()
        for context in gone:
            self.ends.free(context.memory)
            self.contexts.remove(context)
        self.models[model] = self.model(model // 2)
        self.ends.compare()

    def teardown(self) -> None:
        if hasattr(self, "ends"):
            self.ends.close()


def test_both_ends_keep_the_same_graphs():
    run_state_machine_as_test(
        Machine,
        settings=settings(
            max_examples=40, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
        ),
    )


@pytest.fixture
def ends():
    made = Ends(3, Policy.LRU, 1 << 20)
    yield made
    made.close()


def test_graphs_without_a_uid_run_again_by_their_content(ends):
    weights = Memory(ends, 0)
    weights.input = weights.tensor(ends.build, 1.0)
    context = Context(ends, 0, weights, 2)
    for _ in range(4):
        ends.run(context, GRAPHS - 1)
    counts = ends.line.graphs[0].counts
    assert (counts.sent, counts.rerun) == (2, 2)
    (key,) = ends.line.graphs[0]._kept.uids
    assert key & CONTENT_BIT
    memory.write_u64(context.graphs[0][0] + GraphOffset.UID, key)  # a uid that looks like one of our names
    ends.run(context, 0)
    assert (counts.sent, counts.rerun) == (3, 2)


def test_a_graph_that_is_built_anew_under_another_uid_is_not_sent_again(ends):
    weights = Memory(ends, 0)
    weights.input = weights.tensor(ends.build, 1.0)
    context = Context(ends, 0, weights, 2)
    for _ in range(5):
        memory.write_u64(context.graphs[0][0] + GraphOffset.UID, ends.next_uid())
        ends.run(context, 0)
    counts = ends.line.graphs[0].counts
    assert (counts.sent, counts.rerun) == (2, 3)


def test_a_cache_is_asked_for_once_before_the_first_graph(ends):
    with pytest.raises(NotAllowed, match="once"):
        do(ends.worker, Opcode.GRAPH_CACHE_SIZE, GraphCacheSizeRequest(3, Policy.LRU))
    for policy in (2, 99):
        with pytest.raises(BadRequest, match="no policy"):
            do(ends.worker, Opcode.GRAPH_CACHE_SIZE, GraphCacheSizeRequest(3, policy))


def test_nothing_is_kept_by_content_where_a_cache_is_agreed(ends):
    weights = Memory(ends, 0)
    weights.input = weights.tensor(ends.build, 1.0)
    ends.run(Context(ends, 0, weights, 2), GRAPHS - 1)
    assert not ends.worker.state.graphs._small
