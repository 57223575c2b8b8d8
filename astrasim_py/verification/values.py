"""Symbolic execution: what every cell holds at the end, and whether that is what the collective promises.

The value of a cell is an expression over (rank, chunk) of the inputs; a sum keeps how often each contribution occurs,
since reducing one twice is an error that a set would hide. Operands of a sum are sorted, as adding two numbers does
not depend on their order, but nested sums differ by their nesting, as floating-point sums do.
"""

import heapq
from collections import Counter
from collections.abc import Iterator, Mapping
from typing import NamedTuple

from astrasim_py.program.steps import Layout
from astrasim_py.verification.termination import Flow, Order

#: Terms of a value, and writes to a cell, that a message lists.
MAX_TOLD = 6


class Values:
    """Symbolic values: expressions over inputs, each stored once.

    0 is undefined; 1 + r·T + k is chunk k of rank r's input; above these are sums. A sum of different ranks'
    contributions to one chunk is stored as that chunk and a bit set of ranks; any other sum as an expression only.
    """

    def __init__(self, ranks: int, chunks: int) -> None:
        self.chunks = chunks
        self.leaves = ranks * chunks
        self.terms: list[tuple[int, int]] = []
        self._summary: list[tuple[int, int]] = []
        self._known: dict[tuple[int, int], int] = {}

    def leaf(self, rank: int, chunk: int) -> int:
        return 1 + rank * self.chunks + chunk

    def summary(self, value: int) -> tuple[int, int]:
        """(chunk, bit set of ranks) of a value; (-1, 0) where it is not of that form."""
        if value > self.leaves:
            return self._summary[value - self.leaves - 1]
        rank, chunk = divmod(value - 1, self.chunks)
        return (chunk, 1 << rank) if value else (-1, 0)

    def add(self, a: int, b: int) -> int:
        """Value of a + b; a sum with something undefined is undefined."""
        if not a or not b:
            return 0
        key = (a, b) if a < b else (b, a)
        number = self._known.get(key)
        if number is None:
            (chunk, ranks), (other, other_ranks) = self.summary(a), self.summary(b)
            if chunk != other or chunk < 0 or ranks & other_ranks:
                chunk, ranks, other_ranks = -1, 0, 0
            self.terms.append(key)
            self._summary.append((chunk, ranks | other_ranks))
            number = self._known[key] = self.leaves + len(self.terms)
        return number

    def contributions(self, value: int) -> Counter:
        """Counts of each (rank, chunk) in a value."""
        # Terms are always older than their sum: take values from the newest to the oldest.
        counts: Counter = Counter()
        times = {value: 1}
        heap = [-value]
        while heap:
            current = -heapq.heappop(heap)
            often = times.pop(current)
            if current > self.leaves:
                for term in self.terms[current - self.leaves - 1]:
                    if term not in times:
                        heapq.heappush(heap, -term)
                        times[term] = 0
                    times[term] += often
            elif current:
                counts[divmod(current - 1, self.chunks)] += often
        return counts

    def text(self, value: int) -> str:
        if not value:
            return "nothing defined"
        return terms_text(self.contributions(value))


def terms_text(terms) -> str:
    """``chunk 0 of ranks 0, 1, 2``, or a list of terms with how often each occurs."""
    listed = sorted(terms.items())
    chunks = {k for (_, k), _ in listed}
    if len(listed) > 1 and len(chunks) == 1 and all(times == 1 for _, times in listed):
        ranks = [r for (r, _), _ in listed]
        if ranks == list(range(ranks[0], ranks[-1] + 1)) and len(ranks) > 2:
            shown = f"{ranks[0]}..{ranks[-1]}"
        else:
            shown = ", ".join(map(str, ranks[:MAX_TOLD])) + (" …" if len(ranks) > MAX_TOLD else "")
        return f"the sum of chunk {listed[0][0][1]} of ranks {shown}"
    parts = [f"chunk {k} of rank {r}" + (f" ({times} times)" if times > 1 else "") for (r, k), times in listed]
    more = f" + {len(parts) - MAX_TOLD} more" if len(parts) > MAX_TOLD else ""
    return " + ".join(parts[:MAX_TOLD]) + more


class Execution(NamedTuple):
    """Cells at the end."""

    values: Values
    cells: list[int]  # value of every cell of every rank, `Layout.stride` apart
    writer: list[int]  # step that wrote a cell last, -1 for none
    undefined: list[int]  # steps that read a cell which no step had written, in order
    sequence: list[int]  # steps, as they were executed
    held: list[list[int]]  # values of the chunks that every step moved


def execute(where: Layout, flow: Flow | Order, sequence: list[int] | None = None) -> Execution:
    """Run all steps, or those of `sequence`, every one after all it depends on."""
    steps, reads, writes, sender = where.steps, where.reads, where.writes, flow.sender
    sequence = flow.sequence if sequence is None else sequence
    values = Values(steps.ranks, max(steps.chunks, steps.inputs, steps.outputs))
    contents = [0] * (steps.positions * where.stride)
    writer = [-1] * len(contents)
    for r in range(steps.ranks):
        base, many = where.input_of(r)
        if steps.contract is not None and steps.contract.inputs is not None:
            for k in range(many):
                if (r, k) in steps.contract.inputs:
                    contents[base + k] = values.leaf(r, k)
        elif r == steps.root or not where.promise.from_root:
            contents[base : base + many] = range(values.leaf(r, 0), values.leaf(r, many))
    for g in steps.makes:
        contents[writes[g] : writes[g] + steps.count[g]] = [0] * steps.count[g]
    # Data of every step: values of its chunks.
    held: list[list[int]] = [[]] * len(steps)
    undefined: list[int] = []

    def cells(first: int, count: int) -> list[int]:
        # An ill-formed step does not state which cells it reads, so its data are unknown.
        return contents[first : first + count] if first >= 0 else [0] * count

    for g in sequence:
        count, target = steps.count[g], writes[g]
        if count <= 0:
            continue
        operand = reads[g]
        if steps.takes[g] >= 0:
            data = held[sender[g]]
        elif steps.payload[g] >= 0:
            data = held[steps.payload[g]]
        elif g in steps.makes:
            first = values.leaf(steps.rank[g], steps.write_off[g])
            data = list(range(first, first + count))
        else:
            data = cells(operand, count)
            if operand >= 0 and 0 in data:
                undefined.append(g)
            # A reduction that was handed nothing adds to the cells that it writes.
            operand = target
        if steps.reduces[g]:
            cells_of = cells(operand, count)
            if 0 in cells_of:
                undefined.append(g)
            data = list(map(values.add, data, cells_of))
        held[g] = data
        if target >= 0:
            contents[target : target + count] = data
            writer[target : target + count] = [g] * count
    return Execution(values, contents, writer, undefined, sequence, held)


class Wrong(NamedTuple):
    """A cell with wrong content."""

    rank: int
    chunk: int
    cell: int
    holds: int
    expected: Counter


class Judgement(NamedTuple):
    """The cells at the end, compared with the promise."""

    wrong: int  # promised cells that are wrong
    first: Wrong | None  # the wrong cell that was written first: later errors may follow from it
    same_order: bool  # true if ranks that should hold the same sum added it in the same order, or nothing
    differing: tuple[int, int, int] | None  # (output chunk, one rank, another) that rightly hold it and did not


def judge(where: Layout, run: Execution) -> Judgement:
    steps, values = where.steps, run.values
    wrong, first, differing, same_order = [], None, None, True
    sums = steps.contract is None and where.promise.reduces
    #: By what is promised: what the first rank holds, and what the first one that holds it has, with that rank.
    seen: dict[object, int] = {}
    key: object
    right: dict[object, tuple[int, int]] = {}
    for r, chunk, cell, promised in _promises(where):
        value = run.cells[cell]
        if steps.contract is None:
            assert isinstance(promised, tuple), "without a contract ranks contribute to chunks"
            sources, contributed = key = promised
            good = value > 0 and values.summary(value) == (contributed, (1 << sources.stop) - (1 << sources.start))
        else:
            assert not isinstance(promised, tuple), "a contract has terms"
            good, key = values.contributions(value) == promised, tuple(sorted(promised.items()))
        if not good:
            wrong.append((r, chunk, cell, promised))
        else:
            value_before, rank = right.setdefault(key, (value, r))
            if value_before != value and differing is None:
                differing = (chunk, rank, r)
        if sums or steps.contract is not None or value > values.leaves:
            value_before = seen.setdefault(key, value)
            same_order &= value_before == value or max(value_before, value) <= values.leaves
    if wrong:
        # A cell without a writing step has no culprit: its writer, -1, has the last place.
        when = {g: place for place, g in enumerate(run.sequence)} | {-1: len(run.sequence)}
        r, chunk, cell, promised = min(wrong, key=lambda entry: when[run.writer[entry[2]]])
        if steps.contract is None:
            promised = {(q, promised[1]): 1 for q in promised[0] if q < steps.ranks}
        first = Wrong(r, chunk, cell, run.cells[cell], Counter(promised))
    return Judgement(len(wrong), first, same_order, differing)


def _promises(where: Layout) -> Iterator[tuple[int, int, int, tuple[range, int] | Mapping]]:
    """(rank, output chunk, cell, what it should hold): some ranks' contributions to a chunk, or a contract's terms."""
    steps = where.steps
    outputs = [where.output_of(r) for r in range(steps.ranks)]
    if steps.contract is not None:
        for (r, k), terms in sorted(steps.contract.outputs.items()):
            if k < outputs[r][1]:
                yield r, k, outputs[r][0] + k, terms
        return
    for r, (base, _) in enumerate(outputs):
        for k, promised in enumerate(where.promise.after(r, steps.ranks, steps.chunks, steps.root)):
            yield r, k, base + k, promised


def fault(values: Values, wrong: Wrong) -> str:
    """The fault of a cell, in a few words."""
    if not wrong.holds:
        rank = min(wrong.expected, default=(None, 0))[0]
        return "is undefined at the end" + ("" if rank is None else f": it lacks contribution of rank {rank}")
    counts = values.contributions(wrong.holds)
    lost = sorted(wrong.expected.keys() - counts.keys())
    foreign = sorted(counts.keys() - wrong.expected.keys())
    if lost:
        rank = lost[0][0]
        more = f" and of {len(lost) - 1} more" if len(lost) > 1 else ""
        instead = f"; it holds chunk {foreign[0][1]} of rank {foreign[0][0]}" if foreign else ""
        return f"lacks contribution of rank {rank}{more}{instead}"
    for (q, k), times in sorted(wrong.expected.items()):
        if counts[q, k] > times:
            often = "twice" if counts[q, k] == 2 else f"{counts[q, k]} times"
            return f"counts contribution of rank {q} {often}"
        if counts[q, k] < times:
            return f"counts contribution of rank {q} {counts[q, k]} instead of {times} times"
    return f"also holds chunk {foreign[0][1]} of rank {foreign[0][0]}"


def lost_at(where: Layout, run: Execution, wrong: Wrong) -> int:
    """The last step of a switch that held a contribution which a cell lacks, or the wrong content of the cell; -1 for
    none.
    """
    steps, values = where.steps, run.values
    lost = min(wrong.expected.keys() - values.contributions(wrong.holds).keys(), default=None)
    answers: dict[int, bool] = {}

    def holds(value: int) -> bool:
        if value not in answers:
            answers[value] = value == wrong.holds if lost is None else lost in values.contributions(value)
        return answers[value]

    at_switches = (g for g in reversed(run.sequence) if steps.rank[g] >= steps.ranks)
    return next((g for g in at_switches if any(map(holds, run.held[g]))), -1)


def history(where: Layout, flow: Flow, cell: int) -> list[tuple[int, int, Values]]:
    """(step, value, values) of the last few writes to a cell, in the order of execution."""
    accesses = zip(where.writes, where.steps.count, strict=True)
    touching = {g for g, (target, count) in enumerate(accesses) if 0 <= target <= cell < target + count}
    ends = [i + 1 for i, g in enumerate(flow.sequence) if g in touching][-MAX_TOLD:]
    changes = []
    for end in ends:
        after = execute(where, flow, flow.sequence[:end])
        changes.append((flow.sequence[end - 1], after.cells[cell], after.values))
    return changes
