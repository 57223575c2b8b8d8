"""Make workloads from learned models."""

from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from itertools import chain

import numpy as np

from astrasim_py.chakra.schema import COLLECTIVE_OF_CODE, MISSING, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import TraceError
from astrasim_py.core.rows import pointers
from astrasim_py.sharing.learn import learn
from astrasim_py.sharing.levels import Original, renumbered
from astrasim_py.sharing.synthesis_model import Place, PlaceProgram, RankModel, Wait, WorkloadModel

#: Deviation of the logarithms of times of a place, besides their differences between occurrences.
SIGMA = 0.05
#: Largest scale of times to take as long as the original on an ordinary network.
_MOST = 1.25
#: Most places of all ranks that are made.
MAX_PLACES = 5_000_000
_LARGEST = 2**62
_TYPES = {
    "compute": NodeType.COMP,
    "collective": NodeType.COMM_COLL,
    "send": NodeType.COMM_SEND,
    "recv": NodeType.COMM_RECV,
    "load": NodeType.MEM_LOAD,
    "store": NodeType.MEM_STORE,
}
_MESSAGES = ("send", "recv")
_COLUMNS = ("duration_ps", "comm_type", "comm_size", "coll_size", "tensor_size", "comm_root", "comm_priority",
            "comm_src", "comm_dst", "comm_tag", "is_cpu_op", "slot_kind")  # fmt: skip
#: Kinds of calls that `totals` tells apart.
KINDS = (*dict.fromkeys(COLLECTIVE_OF_CODE.values()), "message", "load", "store")


@dataclass(frozen=True, kw_only=True)
class Goal:
    """Goal properties of the workload.

    `repeats`: of the block, by default as in the model. `size_factor`, `compute_factor`: of sizes and of times of
    compute. `ranks`: by default as in the model. `drawn_from`: occurrences of the block that are drawn, by default all.
    `sigma`: see `SIGMA`. `calls`: by kind, how many a rank makes in the mean, and bytes of one. `compute_ps`: makespan
    on a network that takes no time.
    """

    repeats: int | None = None
    size_factor: float = 1.0
    compute_factor: float = 1.0
    ranks: int | None = None
    drawn_from: tuple[int, ...] | None = None
    sigma: float = SIGMA
    calls: Mapping[str, tuple[float, float]] = field(default_factory=dict)
    compute_ps: int | None = None


AS_IS = Goal()


def choose(models: Sequence[WorkloadModel], target: Goal, rng: np.random.Generator) -> tuple[int, Goal]:
    """Number of the workload to make another of, and what is wanted of it: any, or the one with the nearest calls.

    With `calls`, every kind of them must be there; numbers of calls are compared, once the block is repeated as often
    as gives their sum, and then sizes. Raises TraceError: no workload has the kinds, or can have the ranks.
    """
    distances, error = [], None
    for number, model in enumerate(models):
        try:
            with_ranks(model, target.ranks or len(model.ranks))
            distances.append((_distance(model, target), number))
        except TraceError as refused:
            error = error or refused
    if error is not None and not distances:
        raise error
    if not target.calls:
        return distances[int(rng.integers(len(distances)))][1], target
    (_, repeats), number = min(distances)
    return number, replace(target, repeats=repeats)


def _distance(model: WorkloadModel, target: Goal) -> tuple[tuple[float, float], int | None]:
    """Distance of calls from the wanted ones, in numbers and sizes, and the best number of blocks."""
    around, single = (totals(model, part) for part in ((), range(min(model.repeats, 1))))
    lacks = sorted(target.calls.keys() - single.keys())
    if lacks:
        raise TraceError("--want", f"nothing learned has {lacks[0]}", f"write some of {', '.join(single) or 'compute'}")
    ranks, repeats = len(model.ranks), target.repeats
    block = {kind: np.subtract(numbers, around.get(kind, (0, 0))) for kind, numbers in single.items()}
    many = sum(calls for calls, _ in block.values())
    if repeats is None and many:
        missing = ranks * sum(calls for calls, _ in target.calls.values()) - sum(calls for calls, _ in around.values())
        repeats = max(round(missing / many), 1)
    apart = [0.0, 0.0]
    for kind, numbers in block.items():
        goal = target.calls.get(kind, (0, 0))
        have = (np.array(around.get(kind, (0, 0))) + numbers * (repeats or 0)) / ranks
        apart = apart + (np.log1p(have) - np.log1p([goal[0], goal[0] * goal[1]])) ** 2
    return (round(apart[0], 9), apart[1]), repeats


def synthesize(
    model: WorkloadModel,
    rng: np.random.Generator | None,
    target: Goal = AS_IS,
    makespan: Callable[[Workload, bool], int] | None = None,
) -> Workload:
    """Make a workload: the prefix, blocks drawn from the occurrences, the suffix; draws are the same on all ranks.

    Without `rng`, blocks keep their order and times. Unless `repeats` or `ranks` are wanted, sizes
    have the same sums for every kind of call, and the whole takes as long, as what was learned, each times its factor.
    `makespan`: the time in ps of a workload on an ordinary network or, with True, on one that takes no time.

    Raises TraceError: `repeats` of what repeats nothing; `ranks` that the groups cannot grow to; `compute_ps` of what
    computes nothing.
    """
    if target.repeats is not None and not model.repeats:
        raise TraceError("--repeats", "nothing repeats on all ranks together", "drop it")
    repeats = model.repeats if target.repeats is None else target.repeats
    longest = max((len(p.block) * repeats + len(p.prefix) + len(p.suffix) for p in model.programs), default=0)
    _check_size(longest * (target.ranks or len(model.ranks)))
    same = target.repeats is None and target.ranks in (None, len(model.ranks))
    model = with_ranks(model, target.ranks or len(model.ranks))
    order = _draw(target.drawn_from or range(model.repeats), repeats, rng)
    factors = np.ones(longest) if rng is None else rng.lognormal(-(target.sigma**2) / 2, target.sigma, longest)
    draft = _SynthesisDraft(model, order, factors * target.compute_factor, _size_factors(model, order, target, same))
    workload = draft.workload()
    if makespan and target.compute_ps is not None:
        if not (free := makespan(workload, True)):
            raise TraceError("--want", "what was learned computes nothing", "drop compute")
        return replace(draft, times=factors * (target.compute_ps / free * target.compute_factor)).workload()
    if not (same and makespan and target.compute_factor == 1 and target.size_factor == 1 and not target.calls):
        return workload
    first = makespan(workload, False)
    scale = model.nominal_ps / max(first, 1)
    second = makespan(replace(draft, times=factors * scale).workload(), False)
    if second != first:  # network times do not scale
        scale = 1 + (scale - 1) * (model.nominal_ps - first) / (second - first)
    return replace(draft, times=factors * min(max(scale, 1 / _MOST), _MOST)).workload()


def _check_size(places: int) -> None:
    if places > MAX_PLACES:
        problem = f"{places} calls and kernels are too many"
        raise TraceError("--repeats, --ranks", problem, f"stay below {MAX_PLACES}")


def synthetic(original: Original, rng: np.random.Generator) -> Workload:
    """A workload made of what is learned of the skeleton of another one."""

    def makespan(workload: Workload, free: bool) -> int:
        return max(int(end.max(initial=0)) for _, end in original.simulate(workload))

    return renumbered(synthesize(learn(original, nodes=False), rng, AS_IS, makespan), rng)


def _draw(occurrences: Sequence[int], repeats: int, rng: np.random.Generator | None) -> list[int]:
    """Occurrences at random, none again before all have been; the first and the last one stay where they are."""
    inner: list[int] = []
    while len(inner) < repeats - 2:
        others = [*(occurrences[1:-1] or occurrences[-1:])]
        inner += rng.permutation(others).tolist() if rng else others
    return [*occurrences[:1], *inner[: max(repeats - 2, 0)], *occurrences[-1:]][:repeats]


def _parts(program: PlaceProgram, order: Sequence[int]) -> chain:
    """Every place with its occurrence, and the number of its part."""
    block = ((place, time, part) for part, time in enumerate(order, 1) for place in program.block)
    prefix = ((place, 0, 0) for place in program.prefix)
    return chain(prefix, block, ((place, 0, len(order) + 1) for place in program.suffix))


def totals(model: WorkloadModel, order: Sequence[int] | None = None) -> dict[str, tuple[float, float]]:
    """Calls and their bytes by kind, of all ranks, with some occurrences of the block; messages count where they start.

    `order`: of occurrences, by default each in its place.
    """
    by_kind: dict[str, list[float]] = {}
    for number, count in Counter(rank.program for rank in model.ranks).items():
        for place, time, _ in _parts(model.programs[number], range(model.repeats) if order is None else order):
            if place.kind not in ("compute", "recv"):
                total = by_kind.setdefault(_kind(place), [0.0, 0.0])
                total[0] += count
                total[1] += count * max((sizes[time] for sizes in place.sizes.values()), default=0)
    return {kind: (calls, size) for kind, (calls, size) in by_kind.items()}


def _size_factors(model: WorkloadModel, order: list[int], goal: Goal, same: bool) -> dict[str, float]:
    """By kind of call: factor of its sizes."""
    before, after = totals(model), totals(model, order)
    target = {kind: size for kind, (_, size) in before.items()} if same else {}
    target |= {kind: calls * size * len(model.ranks) for kind, (calls, size) in goal.calls.items()}
    factors = {kind: target[kind] / size if kind in target and size else 1.0 for kind, (_, size) in after.items()}
    return {kind: factor * goal.size_factor for kind, factor in factors.items()}


def _kind(place: Place) -> str:
    called = COLLECTIVE_OF_CODE.get(place.attributes.get("comm_type", -1), "other")
    return "message" if place.kind in _MESSAGES else called if place.kind == "collective" else place.kind


@dataclass(frozen=True)
class _SynthesisDraft:
    """One choice of blocks and factors; `times`: of places by number, `sizes`: by kind of call."""

    model: WorkloadModel
    drawn: list[int]
    times: np.ndarray
    sizes: dict[str, float]

    def workload(self) -> Workload:
        stride = max((max(place.tags, default=0) for program in self.model.programs for place in
                      (*program.prefix, *program.block, *program.suffix)), default=0)  # fmt: skip
        stride += stride > 0  # without tags, messages are matched in order
        bodies = [self._nodes(program, stride) for program in self.model.programs]
        traces = tuple(bodies[r.program].trace(r, rank) for rank, r in enumerate(self.model.ranks))
        return Workload(traces, self.model.groups)

    def _nodes(self, program: PlaceProgram, stride: int) -> "_SynthesizedNodes":
        nodes = _SynthesizedNodes()
        ends: list[list[int | None]] = []
        parts = list(_parts(program, self.drawn))
        for number, (place, time, part) in enumerate(parts):
            factor = float(self.times[number * len(self.times) // len(parts)])
            step_nodes: list[int | None] = [None] * len(place.steps)
            ends.append(step_nodes)
            for index, step in enumerate(place.steps):
                takes = step.takes_ps[time] if step.takes_ps else 0
                if takes is None:
                    continue
                deps = _deps(nodes, step.waits, time, number, factor, ends)
                if index == len(step_nodes) - 1 and place.kind != "compute":
                    step_nodes[index] = nodes.add(self._call(place, time, part * stride), deps, place)
                else:
                    host = {"is_cpu_op": 1} if step.cpu else {}
                    step_nodes[index] = nodes.add({"duration_ps": round(takes * factor)} | host, deps)
        return nodes

    def _call(self, place: Place, time: int, tag: int) -> dict[str, int]:
        values: dict[str, int] = {str(name): value for name, value in place.attributes.items()}
        for name, sizes in place.sizes.items():
            scaled = round(sizes[time] * self.sizes.get(_kind(place), 1.0))
            values[name] = max(scaled, min(sizes[time], 1))
        return values | ({"comm_tag": place.tags[time] + tag} if place.tags else {})


@dataclass(frozen=True)
class _SynthesizedNodes:
    """Nodes of a program, in the order of their ids."""

    values: list[dict[str, int]] = field(default_factory=list)
    deps: list[list[int]] = field(default_factory=list)
    calls: dict[int, Place] = field(default_factory=dict)

    def add(self, values: dict[str, int], deps: list[int], call: Place | None = None) -> int:
        if max(values.values(), default=0) > _LARGEST:
            raise TraceError("sizes and times", "one is larger than 2^62 bytes or ps", "write smaller factors")
        if call is not None:
            self.calls[len(self.values)] = call
        else:
            values = values | {"slot_kind": 0}
        self.values.append(values)
        self.deps.append(sorted(set(deps)))
        return len(self.values) - 1

    def trace(self, rank_model: RankModel, rank: int) -> ExecutionTrace:
        columns: dict[str, np.ndarray] = {}
        size = len(self.values)
        for name in _COLUMNS:
            columns[name] = np.array([values.get(name, MISSING) for values in self.values], dtype=np.int64)
        types = np.full(size, NodeType.COMP)
        groups: list[str | None] = [None] * size
        for row, place in self.calls.items():
            types[row] = _TYPES[place.kind]
            groups[row] = rank_model.groups[place.group] if place.group is not None else None
            if place.peer is not None:
                ends = (rank, rank_model.peers[place.peer])
                columns["comm_src"][row], columns["comm_dst"][row] = ends if place.kind == "send" else ends[::-1]
        return ExecutionTrace.from_columns(
            node_id=np.arange(size),
            type=types,
            pg_name=groups,
            duration_micros=-(-np.maximum(columns["duration_ps"], 0) // 10**6),
            data_deps=Csr(pointers(np.array([*map(len, self.deps)], dtype=np.int64)),
                          np.array([*chain(*self.deps)], dtype=np.uint64)),
            **columns,
        )  # fmt: skip


def _deps(
    nodes: _SynthesizedNodes, waits: Sequence[Wait], time: int, number: int, factor: float, ends: list[list]
) -> list[int]:
    """Nodes that a step of a place waits for; `ends`: of steps, by place."""
    deps: list[int] = []
    for wait in waits:
        source, ps = number - (wait.back or 0) if wait.at is None else wait.at, wait.ps[time]
        if ps is None:
            continue
        steps = ends[source] if source >= 0 else [None]
        after = steps[max(wait.step, -len(steps))]
        after = [steps[-1] if after is None else after]
        after = [] if after == [None] else after
        ps = round(ps * factor)
        deps += [nodes.add({"duration_ps": ps}, after)] if ps else after
    return deps


# -- another number of ranks -------------------------------------------------------------------------------------------


def with_ranks(model: WorkloadModel, ranks: int) -> WorkloadModel:
    """The model with another number of ranks.

    Ranks are *slabs* of equal size that do the same: groups and peers are inside a slab, or join the same rank of all
    slabs; the group of all ranks is of every kind. Other slabs are copies. Sizes of calls stay.

    Raises TraceError: no slab is the same as the others, or `ranks` is no multiple of it.
    """
    before = len(model.ranks)
    if ranks == before:
        return model
    _check_size(ranks)
    for slab in range(1, max(before, 2)):  # copies of a single slab would not communicate with each other
        if before % slab == 0 and ranks % slab == 0 and (shared := _joined(model, slab)) is not None:
            return _copied(model, slab, ranks, shared)
    problem = f"groups of {before} ranks do not say how they would be of {ranks}"
    if ranks % before == 0:
        problem = f"the {before} ranks differ, as the stages of a pipeline do, and cannot be copied"
    raise TraceError("--ranks", problem, "drop it" if ranks % before == 0 else f"write a multiple of {before}")


def _joined(model: WorkloadModel, slab: int) -> set[str] | None:
    """Names of the groups that join slabs; None if slabs are not the same."""
    before = len(model.ranks)
    shape: dict[tuple[int, ...], str] = {ranks or tuple(range(before)): name for name, ranks in model.groups.items()}
    shared = {name for ranks, name in shape.items() if len({rank // slab for rank in ranks}) > 1}
    across = {tuple(range(first, before, slab)) for first in range(slab)} | {tuple(range(before))}
    if any(ranks not in across for ranks, name in shape.items() if name in shared) or len(shape) < len(model.groups):
        return None
    for rank, rank_model in enumerate(model.ranks):
        base, shift = model.ranks[rank % slab], rank // slab * slab
        if rank_model.program != base.program or rank_model.peers != tuple(peer + shift for peer in base.peers):
            return None
        if any(peer // slab for peer in base.peers):
            return None
        for name, first in zip(rank_model.groups, base.groups, strict=False):
            moved = tuple(member + shift for member in model.groups[first])
            if name != first if first in shared else model.groups[name] != moved:
                return None
    return shared


def _copied(model: WorkloadModel, slab: int, ranks: int, shared: set[str]) -> WorkloadModel:
    before = len(model.ranks)
    groups: dict[str, tuple[int, ...]] = {}
    for name, listed_ranks in model.groups.items():
        members = listed_ranks or tuple(range(before))
        if name in shared:
            of_all = len(members) == before and before > slab
            groups[name] = tuple(range(ranks)) if of_all else tuple(range(members[0], ranks, slab))
        elif all(member < slab for member in members):
            for number in range(ranks // slab):
                groups[f"{name}.{number}"] = tuple(member + number * slab for member in members)
    copies = []
    for rank in range(ranks):
        base, number = model.ranks[rank % slab], rank // slab
        names = tuple(name if name in shared else f"{name}.{number}" for name in base.groups)
        copies.append(base.model_copy(update={"groups": names, "peers": tuple(p + number * slab for p in base.peers)}))
    return model.model_copy(update={"groups": groups, "ranks": tuple(copies)})
