"""Where the data of operations lie on their ranks, and the copies and sums of two places that they become."""

from astrasim_py.collectives.chunks import Buffer
from astrasim_py.msccl.operations import RECEIVE, RECEIVE_REDUCE, REDUCE, SEND, Cells, Operation, overlap


class Places:
    """Cells of operations. `ends`: chunks of scratch that each rank uses. `fresh`: number of the first unused cell."""

    def __init__(self, ends: list[int], fresh: int) -> None:
        self.ends, self.fresh = list(ends), fresh
        #: Cells that an operation's data lies in where the algorithm names none.
        self.held: dict[int, Cells] = {}

    def unused(self, rank: int, count: int) -> Cells:
        """Unused cells of scratch."""
        offset, cell = self.ends[rank], self.fresh
        self.ends[rank] += count
        self.fresh += count
        return (int(Buffer.SCRATCH), offset, cell)

    def cells(self, op: Operation) -> Cells:
        """Cells that hold the result of an operation."""
        # Data without a place of its own that only a reduction takes is summed in place.
        while op.target is None and op.kind == REDUCE and (giver := op.payload) is not None:
            if giver.target is not None or len(giver.readers) != 1:
                break
            op = giver
        if op.target is not None:
            return op.target
        if op.number not in self.held:
            self.held[op.number] = self.unused(op.rank, op.count)
        return self.held[op.number]

    def work(self, op: Operation) -> list[tuple[str, Cells, Cells]]:
        """Types of MSCCL-IR, sources and destinations of the steps that an operation becomes."""
        if op.kind == SEND:
            source = self.cells(op.payload) if op.source is None and op.payload else op.reads
            return [("s", source, source)]
        if op.kind == RECEIVE:
            return [("r", self.cells(op), self.cells(op))]
        if op.kind == RECEIVE_REDUCE:
            return [("rrc", op.reads, self.cells(op))]
        payload = self.cells(op.payload) if op.payload else None
        if op.kind == REDUCE:
            return self._reduction(op, op.reads, payload)
        source, target = payload if op.source is None and payload else op.reads, self.cells(op)
        if not overlap(source, target, op.count):
            return [("cpy", source, target)]
        between = self.unused(op.rank, op.count)
        return [("cpy", source, between), ("cpy", between, target)]

    def _reduction(self, op: Operation, source: Cells, payload: Cells | None) -> list[tuple[str, Cells, Cells]]:
        """A reduction of two places on one rank: ``re`` adds its source to its destination."""
        count, target = op.count, op.target
        if payload is None:
            if not overlap(source, op.writes, count):
                return [("re", source, op.writes)]
            spare = self.unused(op.rank, count)
            return [("cpy", source, spare), ("re", spare, op.writes)]
        if target is not None:
            for addend, other in ((source, payload), (payload, source)):
                if target[2] == addend[2] and not overlap(other, target, count):
                    return [("re", other, target)]
            if abs(target[2] - source[2]) >= count and abs(target[2] - payload[2]) >= count:
                return [("cpy", payload, target), ("re", source, target)]
        spare = self.cells(op) if target is None else self.unused(op.rank, count)
        if spare == payload:
            return [("re", source, payload)]
        steps = [("cpy", payload, spare), ("re", source, spare)]
        return steps if target is None else [*steps, ("cpy", spare, target)]
