"""Algorithms synthesized for calls of a step: for their own links alone, and beside the calls that run meanwhile."""

import re
from collections.abc import Callable, Hashable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from astrasim_py.collectives.collective import promise_of
from astrasim_py.core.choices import QUEUEING_MODELS
from astrasim_py.core.digest import digest
from astrasim_py.core.errors import AstraError
from astrasim_py.core.records import Records
from astrasim_py.core.units import number_of
from astrasim_py.engine.simulation import simulate
from astrasim_py.optimizer.calls import AlgorithmCase, CallClass, Cases
from astrasim_py.preparation.schedules import find, planned_cost
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.synthesis.emit.emitter import emit
from astrasim_py.synthesis.model.network import Network, Occupied
from astrasim_py.synthesis.model.timing import hop_services
from astrasim_py.synthesis.request import Request, SynthesisResult
from astrasim_py.system.plan import Instance, Plan
from astrasim_py.topology.model import Topology

#: Folder of the algorithms, beside the scenario that names them.
FOLDER = "algorithms"
#: Classes of calls for which algorithms are synthesized: those with most bytes.
MOST_CLASSES = 8
#: Runs of each search; most transfers of a schedule, and most ranks of a group.
_ROUNDS, _TRANSFERS, _RANKS = 20, 2**13, 64
#: Most groups of a class whose links are compared, and most of them that get an algorithm of their own.
_COMPARED, _OWN = 64, 8
#: Most messages of a run of which it is looked up which links they take when.
_MESSAGES = 2**19


@dataclass(frozen=True, kw_only=True)
class TracedStep:
    """A step for whose calls algorithms are synthesized.

    `of`: the candidate that it is. `names`: of its jobs, as `Choice.job` says. `records`: of its messages; None where
    these are too many, or links serve several at once.
    """

    of: Hashable
    plan: Plan
    names: Sequence[str]
    records: Records | None

    @classmethod
    def of_plan(cls, of: Hashable, plan: Plan, names: Sequence[str]) -> "TracedStep":
        known = plan.messages <= _MESSAGES and plan.problem.network.model in QUEUEING_MODELS
        return cls(of=of, plan=plan, names=names, records=simulate(plan, level="messages") if known else None)

    def npus(self, instance: Instance) -> tuple[int, ...]:
        """NPUs of a call, in the order of its group."""
        return tuple(self.plan.npu_of[rank] for rank in instance.members)


@dataclass(frozen=True, kw_only=True)
class SynthesizedCalls:
    """What was synthesized for a class of calls, or why nothing was.

    `name`: of the class. `value`: of its choice; empty: nothing was made. `algorithms`: by name of their file. `text`:
    what they are, or why there are none.
    """

    name: str
    value: Cases = ()
    algorithms: Mapping[str, Algorithm]
    text: str


def synthesized(calls: CallClass, step: TracedStep, seed: int, spend: Callable[[], None]) -> Iterator[SynthesizedCalls]:
    """Algorithms for a class of calls as they are in a step: alone, then beside what else runs during the longest one.

    `spend`: raises where the time is over.
    """
    instances = step.plan.instances
    numbers = [i for i in range(len(instances)) if calls.holds(instances[i], step.names)]
    groups = _CallGroups(step, [instances[i] for i in numbers])
    if groups.refusal:
        yield SynthesizedCalls(name=calls.name, algorithms={}, text=f"nothing: {groups.refusal}")
        return
    alone: dict[tuple[int, ...], tuple[Occupied, ...]] = dict.fromkeys(groups.layouts, ())
    result = _made(calls, step, groups, alone, False, seed, spend)
    yield result
    if result.value and step.records is not None:
        busy = {npus: (_busy(step, step.records, numbers, npus),) for npus in groups.layouts}
        if any(len(occupied.link) for (occupied,) in busy.values()):
            for clock in (False, True):
                yield _made(calls, step, groups, busy, clock, seed, spend)


def _made(
    calls: CallClass,
    step: TracedStep,
    groups: "_CallGroups",
    busy: Mapping[tuple[int, ...], tuple[Occupied, ...]],
    clock: bool,
    seed: int,
    spend: Callable[[], None],
) -> SynthesizedCalls:
    """The algorithms of a class, one for each layout of its groups. `clock`: whether sends wait for their time."""
    algorithms: dict[str, Algorithm] = {}
    cases: list[dict[str, Any]] = []
    texts = []
    network, rooted = step.plan.problem.network, promise_of(calls.collective).rooted
    cost, left_out = planned_cost(network, step.plan.problem.nic)
    for npus, members in groups.layouts.items():
        spend()
        request = Request(
            topology=step.plan.problem.topology.without_events,
            npus=npus,
            collective=calls.collective,
            size=groups.largest.size,
            root=groups.largest.root if rooted else None,
            cost=cost,
            occupied=busy[npus],
            seed=seed,
            rounds=_ROUNDS,
            transfers=_TRANSFERS,
        )
        try:
            result = find(request)
            algorithm = emit(result.schedule, clock=clock)
        except AstraError as error:
            return SynthesizedCalls(name=calls.name, algorithms={}, text=f"nothing: {error.problem}")
        name = file_name(algorithm, calls.role)
        algorithms[name] = algorithm
        texts.append(f"{name} ({', '.join(_told(result, busy[npus], clock, members if cases else ()))})")
        cases += [{"file": name, "when": {"group": group}} for group in members] if cases else [{"file": name}]
    value = tuple(map(AlgorithmCase.of, (*cases[1:], cases[0])))
    return SynthesizedCalls(
        name=calls.name,
        value=value,
        algorithms=algorithms,
        text="; ".join(filter(None, [f"{', '.join(texts)}{groups.shared}", left_out])),
    )


def file_name(algorithm: Algorithm, role: str = "") -> str:
    """The name of the file of an algorithm: no other one has it."""
    name = re.sub(r"[^A-Za-z0-9_.+-]+", "_", algorithm.name)[:64].strip("_")
    return f"{FOLDER}/{'-'.join([name, algorithm.collective, *([role] if role else []), algorithm.digest()[:8]])}.npz"


def _told(result: SynthesisResult, busy: Sequence[Occupied], clock: bool, members: Sequence[str]) -> Iterator[str]:
    schedule = result.schedule
    if members:
        yield f"for {' '.join(members)}"
    yield number_of(result.chunks, "chunk")
    yield "beside other calls" if busy else "alone"
    if clock:
        yield "with a clock"
    if schedule.bound:
        yield f"{100 * (schedule.time / schedule.bound - 1):.1f} % above its bound"


class _CallGroups:
    """The groups of a class, by how they lie on the topology.

    `largest`: the first of the largest calls. `layouts`: NPUs of one group for each layout -> names of the groups that
    have it, first the one with that call. `refusal`: why nothing is synthesized. `shared`: what is to be told of groups
    that get the algorithm of the first.
    """

    def __init__(self, step: TracedStep, instances: Sequence[Instance]) -> None:
        self.refusal, self.shared = self._refusal(instances), ""
        if self.refusal:
            return
        self.largest = max(instances, key=lambda each: each.size)
        group_of: dict[tuple[int, ...], str] = {}
        for instance in (self.largest, *instances):
            group_of.setdefault(step.npus(instance), instance.group)
        alike: dict[str, tuple[int, ...]] = {}
        self.layouts: dict[tuple[int, ...], list[str]] = {}
        for npus, group in group_of.items() if len(group_of) <= _COMPARED else ():
            key = _layout(step.plan.problem.topology.without_events, npus)
            self.layouts.setdefault(alike.setdefault(key, npus), []).append(group)
        others = sum(map(len, list(self.layouts.values())[1:]))
        if len(group_of) > _COMPARED or others > _OWN:
            first = step.npus(self.largest)
            self.layouts = {first: [group_of[first]]}
            self.shared = f", made for group {group_of[first]}; others that lie differently have it as well"

    def _refusal(self, instances: Sequence[Instance]) -> str:
        if not instances:
            return "no such calls in the best step"
        ranks, roots = len(instances[0].members), {instance.root for instance in instances}
        if ranks > _RANKS:
            return f"groups of {ranks} ranks, more than {_RANKS}"
        if promise_of(instances[0].type).rooted and len(roots) > 1:
            return f"calls with {len(roots)} roots"
        return ""


def _layout(topology: Topology, npus: tuple[int, ...]) -> str:
    """A key that groups have in common whose links are alike, rank by rank; empty where they are not connected."""
    try:
        network = Network.of(topology, npus)
    except AstraError:
        return ""
    _, first, position = np.unique(network.hop, return_index=True, return_inverse=True)
    number = np.argsort(np.argsort(first, kind="stable"), kind="stable")[position]  # of each link, by its first use
    services = hop_services(topology, network.links[network.hop], (1, 2**30))
    return digest([network.src, network.dst, network.hop_ptr, number, *services])


def _busy(step: TracedStep, records: Records, numbers: Sequence[int], npus: tuple[int, ...]) -> Occupied:
    """When others hold links of a group during the longest of its largest calls, ps from its start on.

    `numbers`: the calls of its class.
    """
    instances = step.plan.instances
    began, ended = records.collective["start"], records.collective["end"]
    calls = [i for i in numbers if step.npus(instances[i]) == npus]
    call = max(calls, key=lambda i: (instances[i].size, int(ended[i] - began[i])))
    begin, took = int(began[call]), int(ended[call] - began[call])
    hop = records.hop
    # The new schedule may take longer than the call does now.
    meanwhile = (hop["end"] > begin) & (hop["start"] < begin + 2 * took)
    meanwhile &= records.message["instance"][hop["message"]] != call
    meanwhile &= np.isin(hop["link"], Network.of(step.plan.problem.topology.without_events, npus).links)
    link, start, end = (hop[name][meanwhile].astype(np.int64) for name in ("link", "start", "end"))
    return Occupied(link.astype(np.int32), np.maximum(start - begin, 0), end - begin)
