"""Classes of measured training runs, by which errors are told apart: nodes, tensor parallelism, MFU, machine state."""

from collections.abc import Mapping, Sequence
from itertools import pairwise
from typing import Literal

from astrasim_py.validation.training_rows import TrainingRow

By = Literal["nodes", "tp", "mfu", "state"]

#: Upper edges of the classes of measured MFU.
_MFU_EDGES = (0.02, 0.05, 0.1, 0.2, 0.3, 0.4, 0.5)


def measured_mfu(row: TrainingRow) -> float | None:
    """Share of the peak of 16-bit formats that a run reached, counting FLOPs as `Model.flops_per_token` does."""
    layout, machine = row.layout, row.system
    if layout is None or machine is None:
        return None
    flops = layout.model.flops_per_token(layout.seq) * layout.gbs * layout.seq
    return flops / (row.measured * layout.ranks * machine.peak("bf16"))


def nodes_of(row: TrainingRow) -> int:
    """Nodes of a row whose layout is known: a node is what the fast network joins."""
    assert row.layout is not None and row.system is not None
    return -(-int(row.layout.ranks) // row.system.node)


def classes(rows: Sequence[TrainingRow]) -> Mapping[By, Mapping[str, list[int]]]:
    """Indices of rows by class, classes in ascending order; only what has two classes or more.

    A node is what the fast network joins. Counts of nodes between powers of two are with the next power.
    """
    nodes: dict[int, list[int]] = {}
    tp: dict[int, list[int]] = {}
    mfu: dict[int, list[int]] = {}
    state: dict[str, list[int]] = {}
    for index, row in enumerate(rows):
        if row.layout is None or row.system is None:
            continue
        count = nodes_of(row)
        nodes.setdefault((count - 1).bit_length(), []).append(index)
        tp.setdefault(row.layout.tp, []).append(index)
        share = measured_mfu(row)
        if share is not None:
            mfu.setdefault(sum(share >= edge for edge in _MFU_EDGES), []).append(index)
        if row.state:
            state.setdefault(row.state, []).append(index)
    bands = [f"{_percent(low)} to {_percent(high)} %" for low, high in pairwise(_MFU_EDGES)]
    names = [f"below {_percent(_MFU_EDGES[0])} %", *bands, f"{_percent(_MFU_EDGES[-1])} % and more"]
    members_by: dict[By, Mapping[str, list[int]]] = {
        "nodes": {_nodes(power): nodes[power] for power in sorted(nodes)},
        "tp": {str(size): tp[size] for size in sorted(tp)},
        "mfu": {names[band]: mfu[band] for band in sorted(mfu)},
        "state": {name: state[name] for name in sorted(state, reverse=True)},
    }
    return {by: members for by, members in members_by.items() if len(members) > 1}


def _nodes(power: int) -> str:
    return str(2**power) if power < 2 else f"{2 ** (power - 1) + 1} to {2**power}"


def _percent(share: float) -> str:
    return f"{100 * share:g}"
