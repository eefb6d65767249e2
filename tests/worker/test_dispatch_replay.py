"""Captured stock sessions through the dispatcher: the same answers, and no damage to a graph can end the process."""

from __future__ import annotations

import contextlib
import dataclasses
import random

import pytest
from building import Builder, Wire, do, herd_dispatcher
from mutating import mutate
from opcases import CASES
from replaying import NAMES, Replay

from wireherd.errors import WireherdError
from wireherd.protocol.table import Opcode
from wireherd.worker import ops

_COLLECTIVES = (Opcode.COMM_INIT, Opcode.COMM_ALLREDUCE, Opcode.COMM_FREE)
#: answers that depend on the server's memory
_OWN = (Opcode.ALLOC_BUFFER, Opcode.BUFFER_GET_BASE, Opcode.GET_DEVICE_MEMORY)


@pytest.mark.parametrize("name", [name for name in NAMES if "tensor" not in name])
def test_the_answers_are_those_of_the_stock_server_bit_for_bit(name):
    replay = Replay(name)
    compared = 0
    for step in replay.steps:
        answer = replay.run(step)
        if step.answer is None or answer is None or step.opcode in _OWN:
            continue
        raw = replay.dialect.encode(answer) if dataclasses.is_dataclass(answer) else bytes(answer)
        assert raw == bytes(step.answer), Opcode(step.opcode).name
        compared += 1
    assert compared >= 6
    assert not len(replay.dispatcher.state.buffers), "the session frees what it allocates"
    replay.close()


@pytest.mark.parametrize("name", [name for name in NAMES if "tensor" in name])
def test_the_graphs_of_a_tensor_split_are_taken(name):
    """Without the other rank the numbers differ; every graph and every re-run of one must be accepted all the same."""
    replay = Replay(name)
    for step in replay.steps:
        if step.opcode not in _COLLECTIVES:
            replay.run(step)
    replay.close()


@pytest.mark.parametrize(
    ("name", "count"), [("v8.0-tiny-s1.0.12", 2000), ("v8.0-tiny-s2tensor.1.17", 500), ("v5.1-tiny-s1.0.21", 500)]
)
def test_damaged_graphs_are_refused_or_run(name, count):
    replay = Replay(name)
    last_free = max(
        (index for index, step in enumerate(replay.steps) if step.opcode == Opcode.GRAPH_COMPUTE), default=0
    )
    graphs = []
    for step in replay.steps[: last_free + 1]:
        if step.opcode in _COLLECTIVES:
            continue
        if step.opcode == Opcode.GRAPH_COMPUTE:
            graphs.append((step, replay.translate(step.message)))
            if step is replay.steps[last_free]:
                break
        replay.run(step)
    refused = 0
    for number in range(count):
        rng = random.Random(f"{name}/{number}")
        message = graphs[-1][1] if rng.random() < 0.7 else rng.choice(graphs)[1]
        node_ids, tensors = mutate(rng, message.node_ids, message.tensors, rng.choice((1, 1, 2, 4)))
        damaged = dataclasses.replace(message, node_ids=node_ids, tensors=tensors)
        try:
            do(replay.dispatcher, Opcode.GRAPH_COMPUTE, damaged)
        except WireherdError:
            refused += 1
    assert 0 < refused < count
    replay.close()


def test_every_rule_has_a_graph_that_ggml_made():
    assert set(CASES) == {*ops._RULES, "UNARY", "GLU"}


@pytest.mark.parametrize("name", sorted(CASES))
def test_what_ggml_builds_is_taken_and_what_is_damaged_does_no_harm(name):
    for number, case in enumerate(CASES[name]):
        builder, worker = Builder(), herd_dispatcher()
        result = case(builder)
        wire = Wire([result], worker)
        assert name in {worker.state.table.names[int(row["op"])] for row in wire.rows}
        assert set(do(worker, Opcode.SUPPORTS_OP, wire.question()).supported) == {1}
        do(worker, Opcode.GRAPH_COMPUTE, wire.compute())
        for attempt in range(12):
            rng = random.Random(f"{name}/{number}/{attempt}")
            node_ids, tensors = mutate(rng, wire.node_ids, wire.rows, rng.choice((1, 1, 2)))
            damaged = dataclasses.replace(wire.compute(), node_ids=node_ids, tensors=tensors)
            for opcode, message in (
                (Opcode.GRAPH_COMPUTE, damaged),
                (Opcode.SUPPORTS_OP, dataclasses.replace(wire.question(), node_ids=node_ids, tensors=tensors)),
            ):
                with contextlib.suppress(WireherdError):
                    do(worker, opcode, message)
        worker.close()
        builder.close()
