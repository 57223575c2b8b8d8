"""Collectives on parameters and gradients: in buckets, by parts."""

from collections.abc import Callable, Iterable, Mapping
from dataclasses import replace
from typing import Any, Protocol

from astrasim_py.training.assembly import Block
from astrasim_py.training.lanes import Lane, Unit, weights_group, weights_of
from astrasim_py.training.layers import Comm, Op


class CollectiveWriter(Protocol):
    """What adds collectives, and what software takes for them, to a block."""

    def collective(self, to: Block, unit: Unit, comm: Comm, name: str = "", **others: Any) -> int: ...

    def delay(self, to: Block, unit: Unit, comm: Comm, name: str = "", **others: Any) -> list[int]: ...


class Buckets:
    """Collectives on parameters or gradients, joined up to a size.

    `comms`: those of each unit. `writer`: adds one to the block. `parts`: into how many parts a collective of a
    group is cut, where computation uses parts.
    """

    def __init__(
        self,
        block: Block,
        comms: Mapping[Unit, tuple[Comm, ...]],
        size: int,
        writer: CollectiveWriter,
        parts: Callable[[str], int] | None = None,
    ) -> None:
        self.block, self.comms, self.size, self.writer, self.parts = block, comms, size, writer, parts
        self.open: dict[tuple, list[tuple[Unit, Comm]]] = {}
        self.others: dict[tuple, dict] = {}
        self.rows: dict[tuple[Unit, str], int] = {}
        self.made: dict[tuple[Unit, str], list[tuple[int, int]]] = {}

    def add(self, unit: Unit, part: str, when: str, *, stream: str, lane: Lane | None = None, **others) -> None:
        """Add those of a layer; the last ones of a bucket decide when it is sent. `lane`: of the layer's gradients."""
        if lane is not None:
            others["lane"] = lane.number
            self.made = lane.gradients
        for comm in self.comms[unit]:
            if (comm.part, comm.when) != (part, when):
                continue
            key = comm.group, comm.collective
            self.open.setdefault(key, []).append((unit, comm))
            self.others[key] = others | {"stream": "tie" if key[0] == "tie" and stream == "dp" else stream}
            if sum(waiting.size for _, waiting in self.open[key]) >= self.size:
                self._send(key)

    def close(self) -> dict[tuple[Unit, str], int]:
        """Send the rest; rows by layer and group."""
        for key in list(self.open):
            self._send(key)
        return self.rows

    def _send(self, key: tuple) -> None:
        bucket = self.open.pop(key)
        comm = replace(bucket[0][1], size=sum(item.size for _, item in bucket))
        label = "-".join(dict.fromkeys((bucket[0][0].label, bucket[-1][0].label)))
        name, others = f"{label}.{comm.name}", self.others[key]
        if self.parts is not None and comm.name == "gradients":
            marks = self._marks(bucket, name, self.parts(key[0]), others["lane"])
            row = self.writer.collective(
                self.block, bucket[0][0], comm, name, in_parts=True, **others | {"after": marks}
            )
            for mark in marks:
                self.block.rows[mark]["produces"] = row
            stream = {"stream": others["stream"], "lane": others["lane"]}
            self.writer.delay(self.block, bucket[0][0], comm, name, after=[row], **stream)
        else:
            row = self.writer.collective(self.block, bucket[0][0], comm, name, **others)
        self.rows |= {(unit, key[0]): row for unit, _ in bucket}

    def _marks(self, bucket: list[tuple[Unit, Comm]], name: str, parts: int, lane: int) -> list[int]:
        """Nodes that wait for all gradients of a part of a bucket each."""
        total, spans, begin = sum(int(comm.size) for _, comm in bucket), [], 0
        for unit, comm in bucket:
            weight_rows, taken, size = self.made[unit, comm.group], 0, int(comm.size)
            weights = sum(count for count, _ in weight_rows)
            for count, row in weight_rows:
                first, last = (begin + size * part // weights for part in (taken, taken + count))
                spans.append((first, last, row))
                taken += count
            begin += size
        marks = []
        for part in range(parts):
            first, last = part * total // parts, (part + 1) * total // parts
            after = dict.fromkeys(row for begin, end, row in spans if begin < last and end > first)
            tile = {"produces_tile": part, "produces_tiles": parts}
            marks.append(self.block.mark(f"{name} part {part + 1}/{parts}", after=after, lane=lane, **tile))
        return marks


class Weights:
    """Parts of the gathered parameters of a unit that its products wait for."""

    def __init__(self, items: Iterable, parts: Callable[[str], int]) -> None:
        spans: dict[str, tuple[str, int, int]] = {}
        ends: dict[str, int] = {}
        for op in items:
            weighs = isinstance(op, Op) and op.part == "F" and (op.kind == "gemm" or op.block == "embedding")
            if weighs and _weights_name(op) not in spans:
                group = weights_group(op)
                begin = ends.get(group, 0)
                ends[group] = begin + weights_of(op)
                spans[_weights_name(op)] = group, begin, ends[group]
        #: Streams of each operation, by the name of its weights.
        self.streams = {}
        for name, (group, begin, end) in spans.items():
            number, total = parts(group), ends[group]
            held = range(begin * number // total, -(-end * number // total))
            self.streams[name] = tuple(part_stream(group, part) for part in held)

    def of(self, ops: Iterable[Op]) -> tuple[str, ...]:
        """Streams of the parts that operations wait for."""
        names = (name for op in ops if op.part != "W" for name in self.streams.get(_weights_name(op), ()))
        return tuple(dict.fromkeys(names))


def _weights_name(op: Op) -> str:
    """Logits of further tokens have the same weights."""
    return op.name.rpartition(".")[2]


def part_stream(group: str, part: int) -> str:
    """Stream of the nodes that wait for a part of gathered parameters."""
    return f"gather {group} {part}"
