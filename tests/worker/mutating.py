"""Random damage to a graph: one field of one record, or the list of nodes, becomes something plausible or absurd."""

from __future__ import annotations

import random

import numpy as np

_EDGES = (0, 1, 2, 3, 4, 5, 7, 8, 31, 32, 33, 63, 64, 65, 255, 256, 1 << 15, (1 << 31) - 1, 1 << 31, (1 << 32) - 1)
_WIDE = (*_EDGES, 1 << 40, 1 << 46, 1 << 47, 1 << 62, (1 << 63) - 1, (1 << 64) - 1)
_FIELDS = ("type", "ne", "nb", "op", "op_params", "flags", "src", "view_src", "view_offs", "data", "buffer", "id")
_WEIGHTS = (6, 14, 10, 8, 12, 3, 12, 4, 2, 12, 3, 2)
_FLOATS = tuple(int(np.float32(x).view(np.int32)) for x in (0.0, 1.0, -1.0, 1e-5, 1e30, np.inf, -np.inf, np.nan))


def mutate(rng: random.Random, node_ids: np.ndarray, rows: np.ndarray, times: int) -> tuple[np.ndarray, np.ndarray]:
    """A damaged copy of a graph."""
    node_ids, rows = node_ids.copy(), rows.copy()
    for _ in range(times):
        if rng.random() < 0.06:
            node_ids = _shuffle(rng, node_ids)
        else:
            _one(rng, rows)
    return node_ids, rows


def _shuffle(rng: random.Random, node_ids: np.ndarray) -> np.ndarray:
    kind = rng.randrange(4)
    if not len(node_ids):
        return np.array([rng.getrandbits(64)], np.uint64)
    if kind == 0 and len(node_ids) > 1:
        a, b = rng.sample(range(len(node_ids)), 2)
        node_ids[[a, b]] = node_ids[[b, a]]
    elif kind == 1:
        node_ids = np.delete(node_ids, rng.randrange(len(node_ids)))
    elif kind == 2:
        node_ids = np.append(node_ids, node_ids[rng.randrange(len(node_ids))])
    else:
        node_ids[rng.randrange(len(node_ids))] = rng.getrandbits(64)
    return node_ids


def _one(rng: random.Random, rows: np.ndarray) -> None:
    row = rows[rng.randrange(len(rows))]
    other = rows[rng.randrange(len(rows))]
    field = rng.choices(_FIELDS, _WEIGHTS)[0]
    if field == "op" and rng.random() < 0.7:
        row["op"] = rng.choice((other["op"], rng.randrange(104)))
    elif row[field].ndim:
        axis = rng.randrange(len(row[field]))
        if field == "src":
            row["src"][axis] = rng.choice((0, int(other["id"]), int(row["id"]), rng.getrandbits(64)))
        elif field == "op_params":
            value = rng.choice((*_FLOATS, *_EDGES, int(other["op_params"][axis]), rng.getrandbits(32)))
            row["op_params"][axis] = np.array(value & 0xFFFFFFFF, np.uint32).view(np.int32)
        else:
            width = 8 * row[field].dtype.itemsize - (row[field].dtype.kind == "i")
            old = int(row[field][axis])
            values = (*_WIDE, old + 1, old - 1, old * 2, old // 2, int(other[field][axis]), rng.getrandbits(width))
            row[field][axis] = rng.choice(values) & ((1 << width) - 1)
            if field == "ne" and rng.random() < 0.3:
                row["ne"] = other["ne"]
    elif field in {"view_src", "id"}:
        row[field] = rng.choice((0, int(other["id"]), rng.getrandbits(64)))
    elif field == "data" and rng.random() < 0.7:
        delta = rng.choice((-4096, -64, -4, -1, 1, 2, 4, 64, 4096, 1 << 20))
        row["data"] = rng.choice((int(other["data"]), (int(row["data"]) + delta) & ((1 << 64) - 1)))
    else:
        width = 8 * row[field].dtype.itemsize - (row[field].dtype.kind == "i")
        old = int(row[field])
        row[field] = rng.choice((*_WIDE, old + 1, old * 2, int(other[field]), rng.getrandbits(width))) & (
            (1 << width) - 1
        )
