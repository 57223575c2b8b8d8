"""Segments of a run: the nodes that it becomes where parts of collectives are used."""

from collections.abc import Callable, Container, Iterable, Sequence
from dataclasses import dataclass
from itertools import groupby
from typing import NamedTuple

from astrasim_py.training.layers import Op
from astrasim_py.training.runs import NodeOps, brings, main


class Span(NamedTuple):
    """The part of a node that is in none of its segments before: that of `ops` without that of `before`."""

    ops: tuple[Op, ...]
    before: tuple[Op, ...] = ()
    experts: bool = False  # whether the node has products of experts


@dataclass(frozen=True, slots=True, eq=False)
class Segment:
    """Operations of a run that are one node, or its tiles.

    `consumes`, `produces`: whether tiles of it wait for the collective before the run, or make the input of the one
    after it. `beside`: whether it runs beside the collective after the run. `spans`: the parts of the nodes that the
    operations are of where no collective is used by parts; their prices are its price, so that all segments of a node
    take its time.
    """

    ops: tuple[Op, ...]
    name: str
    spans: tuple[Span, ...]
    consumes: bool = False
    produces: bool = False
    beside: bool = False

    @classmethod
    def whole(cls, ops: Iterable[Op], name: str) -> "Segment":
        """A segment that is a node of its own."""
        ops = tuple(ops)
        return cls(ops, name, (Span(ops, (), _experts(ops)),))


def cut_into_segments(
    runs: Iterable, wholes: Iterable, cut: Container[str], weighted: Callable[[NodeOps], bool]
) -> None:
    """Give the runs of a pass their segments.

    `wholes`: the runs of the pass where no collective is used by parts. `cut`: groups whose collectives are used in
    tiles. `weighted`: whether each product of a run is a segment of its own, as weights arrive and gradients leave by
    parts.
    """
    nodes = [tuple(run.ops) for run in wholes if isinstance(run, NodeOps)]
    node_of = {id(op): number for number, ops in enumerate(nodes) for op in ops}
    taken: set[int] = set()
    for run in runs:
        if not isinstance(run, NodeOps):
            continue
        run.segments = []
        parts = _parts(run, cut, weighted(run))
        for (consumes, produces, beside), ops in parts:
            spans = []
            for number in dict.fromkeys(node_of[id(op)] for op in ops):
                before = tuple(op for op in nodes[number] if id(op) in taken)
                taken |= {id(op) for op in ops if node_of[id(op)] == number}
                after = tuple(op for op in nodes[number] if id(op) in taken)
                spans.append(Span(after, before, _experts(nodes[number])))
            name = run.name if len(parts) == 1 else f"{main(ops).block}.{main(ops).name}"
            run.segments.append(Segment(tuple(ops), name, tuple(spans), consumes, produces, beside))


def _parts(run: NodeOps, cut: Container[str], by_weights: bool) -> list[tuple[tuple[bool, bool, bool], list[Op]]]:
    """Operations of each segment, and whether it consumes, produces, and comes after what the run produces.

    Of tensor parallel layers the first product consumes and the last one produces; weight gradients do neither. All
    products of experts but those do both.
    """
    ops, inner = run.ops, [op for op in run.ops if op.part != "W"]
    opens = any(comm.group in cut and brings(comm) and comm.part != "W" for comm in run.before)
    closes = any(comm.group in cut for comm in run.after)
    if any(comm.group in cut and comm.group == "ep" for comm in run.before + run.after):
        ops = inner + [op for op in ops if op.part == "W"]
        consumes, produces = inner if opens else [], inner if closes else []
    else:
        consumes = [op for op in ops[:1] if opens and op.part != "W"]
        produces = inner[-1:] if closes else []
    reads, makes = ({id(op) for op in operations} for operations in (consumes, produces))
    ends = max((place for place, op in enumerate(ops) if id(op) in makes), default=-1)
    keys, number = [], 0
    for place, op in enumerate(ops):
        uses = id(op) in reads, id(op) in makes, place > ends
        if by_weights and not any(uses[:2]) and place and (op.kind == "gemm" or ops[place - 1].part == "W"):
            number += 1
        keys.append((number, uses))
    groups = groupby(zip(keys, ops, strict=True), key=lambda pair: pair[0])
    return [(uses, [op for _, op in pairs]) for (_, uses), pairs in groups]


def _experts(ops: Sequence[Op]) -> bool:
    return any(op.name.startswith("experts") for op in ops)
