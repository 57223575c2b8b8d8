"""`world`: a random problem of any kind that an engine can be given, from one number."""

from __future__ import annotations

import random
from collections.abc import Sequence
from dataclasses import replace
from fractions import Fraction

from worlds import small_problems
from worlds.programs import random_algorithm, random_planner, slots_model, thread_blocks
from worlds.topologies import topology

from astrasim_py.builders.registry import ALGORITHMS, build, default_algorithm, options_of
from astrasim_py.chakra.schema import CommType, NodeType
from astrasim_py.chakra.workload import Workload
from astrasim_py.collectives.collective import promise_of
from astrasim_py.core.choices import FLUID
from astrasim_py.core.errors import AstraError
from astrasim_py.dialects.chunks.lower import BASELINE, FIXED, LOCAL_FIRST, THEMIS, DimensionPlanner
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.system.machine_models import (
    NO_MEMORY,
    Collectives,
    ComputeModel,
    Limits,
    MemoryModel,
    NetworkModel,
    NicModel,
)
from astrasim_py.system.noise import Noise
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology.events import LinkEvent
from astrasim_py.topology.model import Routing, Topology
from astrasim_py.topology.profile import LibraryProfile
from astrasim_py.workload.iterations import iterate

COLLECTIVES = (
    *("all_reduce", "all_reduce", "all_gather", "reduce_scatter", "all_to_all"),
    *("broadcast", "reduce", "gather", "scatter", "barrier"),
)
#: The only ones that `FLUID` is made for.
FLUID_RULES = {"rounding": "up_ps", "event_order": "issued", "issue_order": "id"}
#: The only ones that queue pairs are made for.
QUEUE_PAIR_RULES = {
    "event_order": "issued",
    "issue_order": "id",
    "message_match": "instance",
    "rendezvous_bytes": 0,
    "analytical_route": "all_hops",
}
SIZES = (0, 1, 7, 12, 1000, 6000, 6001, 48_000)


class AnyAlgorithm:
    """An algorithm table: of each call the same whenever it is asked; builders, and now and then a random one.

    A random one does not do what the call asks for, and so has no verdict.
    """

    def __init__(self, rng: random.Random, *, odd: float, blocks: bool) -> None:
        self.rng, self.odd, self.blocks = rng, odd, blocks
        self.made: dict[tuple, Algorithm] = {}

    def select(self, collective: str, size: int, ranks: int, group: str, root: int = 0, **_) -> Algorithm:
        """What carries out a call."""
        key = collective, ranks, root, group
        if key not in self.made:
            self.made[key] = self.make(collective, ranks, root)
        return self.made[key]

    def make(self, collective: str, ranks: int, root: int) -> Algorithm:
        rng = self.rng
        if rng.random() < self.odd:
            return random_algorithm(rng, ranks)
        if self.blocks and rng.random() < 0.5:
            made = thread_blocks(rng)
            if made.ranks == ranks:
                return made
        able = [name for name, (served, _) in ALGORITHMS.items() if collective in served]
        name = rng.choice(able)
        known, options = options_of(name), {}
        if promise_of(collective).rooted:
            options["root"] = root
        if "chunks" in known and rng.random() < 0.4:
            options["chunks"] = rng.randint(2, 3)
        if "bidirectional" in known and rng.random() < 0.3:
            options["bidirectional"] = True
        if "window" in known and rng.random() < 0.4:
            options["window"] = rng.randint(1, ranks)
        if "dims" in known:
            options["dims"] = [ranks // 2, 2] if ranks % 2 == 0 and ranks > 2 else [ranks]
        if rng.random() < 0.15:
            options["channels"] = rng.randint(1, 3)
        if "nodes" in known and rng.random() < 0.2:
            members = rng.sample(range(ranks), ranks)
            options["nodes"] = [each for each in (members[: ranks // 3], members[ranks // 3 :]) if each]
        try:
            made = build(name, collective, ranks, **options)
        except AstraError:  # it does not serve such a group
            rooted = {"root": root} if promise_of(collective).rooted else {}
            made = build(default_algorithm(collective), collective, ranks, **rooted)
        return replace(made, verdict=True)


def world(seed: int, size: int = 8) -> Problem:
    """The problem of a number.

    Parameters
    ----------
    seed : int
    size : int
        At most so many ranks, and as many things to do; smaller ones are easier to understand.
    """
    rng = random.Random(seed)
    total = rng.randint(2, max(2, size))
    if rng.random() < 0.05:
        total = 2 * size  # one larger ring or so
    net = topology(rng, total)
    places = list(net.alive)
    if rng.random() < 0.6:
        rng.shuffle(places)
    parts = [total]
    if total > 3 and rng.random() < 0.2:
        first = rng.randint(1, total - 2)
        parts = [first, total - first]
    semantics = _semantics(rng)
    network = _network(rng)
    if network.model == FLUID:
        semantics = Semantics(**{key: getattr(semantics, key) for key in Semantics.model_fields} | FLUID_RULES)
    if network.qps > 1:
        net = net.changed(routing=Routing(ecmp=True, seed=rng.randint(0, 9)))
        rules = QUEUE_PAIR_RULES | ({"comm_slots": None} if network.split else {})
        semantics = Semantics(**{key: getattr(semantics, key) for key in Semantics.model_fields} | rules)
    if network.profile is not None:
        known = ("gamma", "comm_slots", "compute_slots", "cpu_slots", "zero_duration_ps", "dependencies", "exposed")
        semantics = Semantics.native(**{key: getattr(semantics, key) for key in known})
    if network.msccl is not None:
        semantics = semantics.model_copy(update={"issue_order": "id"})
    memory = _memory(rng)
    compute = ComputeModel()
    if rng.random() < 0.3:
        bandwidth = rng.choice((None, Fraction(10**9)))
        compute = ComputeModel(roofline=True, peak=Fraction(10**12), memory_bandwidth=bandwidth)
    jobs = []
    for number, ranks in enumerate(parts):
        mine, places = places[:ranks], places[ranks:]
        jobs.append(_job(rng, f"job{number}", ranks, tuple(mine), size, network, memory.kind != "none"))
    limits = Limits()
    if rng.random() < 0.06:
        limits = rng.choice(
            (Limits(max_events=rng.randint(1, 200)), Limits(max_sim_time_ps=rng.randint(0, 40) * 10**6))
        )
    return Problem(
        topology=net,
        jobs=tuple(jobs),
        network=network,
        semantics=semantics,
        compute=compute,
        memory=memory,
        limits=limits,
    )


def calls(seed: int, size: int = 5) -> Problem:
    """Some collectives, mostly over switches, and computations of ranks that enter them late or leave them early."""
    rng = random.Random(seed)
    ranks = rng.randint(2, size)
    net = topology(rng, ranks)
    while net.vertices == net.npus and seed % 4:
        net = topology(rng, ranks)
    work = _Work(rng, ranks, memory=False)
    work.counts = False
    for _ in range(rng.randint(1, 3)):
        work.fill(rng.randint(0, 1), ("compute",))
        work.fill(1, ("collective",))
        for _ in range(rng.randint(0, 2)):
            rank = rng.randrange(ranks)
            last = work.nodes[rank][-1:] and {len(work.nodes[rank]) - 1}
            work.add(rank, type=NodeType.COMP, micros=rng.choice((1, 5, 30)))["deps"] |= set(last)
    job = Job(
        workload=work.workload(),
        placement=tuple(rng.sample(net.alive, ranks)),
        algorithms=AnyAlgorithm(rng, odd=0.0, blocks=False),
    )
    return Problem(
        topology=net,
        jobs=(job,),
        network=NetworkModel(
            model=rng.choice(("cut_through", "store_and_forward", FLUID)),
            send_completes=rng.choice(("delivery", "delivery", "injected")),
        ),
        semantics=Semantics.native(gamma=rng.choice((Fraction(0), Fraction(1, 10**9)))),
    )


def over_time(problem: Problem, seed: int) -> Problem:
    """The problem with noise, NICs, events of links, jobs that repeat what they do or run in the background; or not."""
    rng = random.Random(~seed)
    jobs = list(problem.jobs)
    if problem.network.model == FLUID and problem.topology.links and seed % 2:
        problem = replace(problem, topology=with_events(random.Random(seed), problem.topology))
    if rng.random() < 0.15:
        period = rng.randint(2, 3_000_000)
        kinds = {
            "compute": {"exponential": rng.randint(0, 2_000_000)},
            "detours": {"period": period, "length": rng.randint(1, period - 1)},
        }
        drawn = rng.choice((("compute",), ("detours",), ("compute", "detours")))
        problem = replace(problem, noise=Noise(seed=seed, **{kind: kinds[kind] for kind in drawn}))
    issued = problem.semantics.event_order == "issued" and not problem.semantics.rendezvous_bytes
    if issued and problem.network.profile is None and rng.random() < 0.2:
        nic = NicModel(overhead=rng.choice((0, 1, 700_001)), gap=rng.choice((0, 1, 50_000, 2_000_000)))
        problem = replace(problem, nic=nic)
    if len(jobs) == 1 and rng.random() < 0.7:
        return problem
    for at, job in enumerate(jobs):
        times = rng.randint(1, 3)
        made = {"workload": iterate(job.workload, times), "iterations": times}
        jobs[at] = replace(job, **made, background=len(jobs) > 1 and rng.random() < 0.5)
    if all(job.background for job in jobs):
        jobs[0] = replace(jobs[0], background=False)
    return replace(problem, jobs=tuple(jobs))


def with_events(rng: random.Random, net: Topology) -> Topology:
    """The topology with links that fail, change and return, on the grid of times of other things."""

    def links(most: int) -> tuple[int, ...]:
        return tuple(sorted(rng.sample(range(net.links), min(rng.randint(0, most), net.links))))

    events = []
    for at in sorted(rng.sample(range(60), rng.randint(1, 6))):
        event = LinkEvent(at * rng.choice((10**6, 500_000)) if not events else events[-1].at_ps + at * 10**5 + 1)
        if rng.random() < 0.8:
            rate, latency = (rng.choice((None, v)) for v in (small_problems.GB / rng.choice((1, 3)), 2_000_000))
            event = replace(event, lost=links(2), changes=((links(2), rate, latency),))
        events.append(event)
    return replace(net, events=tuple(events), reroute_ps=rng.choice((0, 1_000_000, 1_300_000)))


def _semantics(rng: random.Random) -> Semantics:
    make = Semantics.astra_sim if rng.random() < 0.25 else Semantics.native
    changed: dict = {}
    for key, values in (
        ("rounding", ("up_ps", "floor_ns")),
        ("message_match", ("instance", "bytes")),
        ("event_order", ("issued", "scheduled", "scheduled")),
        ("analytical_route", ("all_hops", "lowest_dim")),
        ("exposed", ("waiting", "finish_minus_compute")),
        ("dependencies", ("data", "data+ctrl")),
        ("injected_sizes", ("symbolic", "verbatim")),
        ("gamma", (Fraction(0), Fraction(1, 10**9))),
        ("zero_duration_ps", (0, 1000)),
        ("comm_slots", (None, None, None, 1, 2, 3)),
        ("compute_slots", (None, 1, 2)),
        ("cpu_slots", (None, 1, 2)),
    ):
        if rng.random() < 0.3:
            changed[key] = rng.choice(values)
    if changed.get("event_order") == "scheduled" and rng.random() < 0.5:
        changed["issue_order"] = "hash_set"
    if rng.random() < 0.12:
        changed["rendezvous_bytes"] = rng.choice((1, 100, 8192))
    return make(**changed)


def _network(rng: random.Random) -> NetworkModel:
    if rng.random() < 0.15:
        profile = random_profile(rng)
        return NetworkModel(
            profile=profile,
            protocol=rng.choice(("fastest", *profile.protocols)),
            switch_reduction=profile.switch is not None and rng.random() < 0.5,
            send_completes=rng.choice(("delivery", "delivery", "injected")),
        )
    models = ("cut_through", "cut_through", "store_and_forward", "store_and_forward", "analytical", FLUID)
    model = rng.choice(models)
    made = NetworkModel(
        model=model,
        link_busy="bytes" if model == FLUID else rng.choice(("bytes", "bytes", "latency+bytes")),
        send_completes=rng.choice(("delivery", "delivery", "injected")),
        msccl=slots_model(rng) if rng.random() < 0.15 else None,
    )
    if rng.random() >= 0.15:
        return made
    splits = made.msccl is None and model != "analytical" and rng.random() < 0.6
    return made.model_copy(update={"qps": rng.randint(2, 5), "split": splits})


def random_profile(rng: random.Random) -> LibraryProfile:
    """A profile of random costs, of two protocols, one of them over channels."""
    rate = lambda: Fraction(rng.randint(1, 40), 10) * small_problems.GB  # noqa: E731
    time = lambda: rng.choice((0, 1, rng.randint(1, 5_000_000)))  # noqa: E731
    protocols = {
        "LL": {"launch": time(), "step": time(), "channel_rate": rate()},
        rng.choice(("LL128", "Simple")): {"launch": time(), "step": time(), "rate": rate()},
    }
    return LibraryProfile(
        library="any",
        ranks=(2,),
        sizes=(1, 10**6),
        dtypes=("half",),
        channels=rng.randint(1, 5),
        channel_bytes=rng.choice((1, 100, 4096)),
        protocols=protocols,
        copy_rate=rate() if rng.random() < 0.7 else None,
        peer=time(),
        link=rate(),
        switch={"launch": time(), "rate": rate(), "ranks": 2} if rng.random() < 0.5 else None,
        network={"launch": time(), "steps": dict.fromkeys(protocols, time()), "efficiency": 0.9}
        if rng.random() < 0.4
        else None,
    )


def _memory(rng: random.Random) -> MemoryModel:
    kind = rng.choice(("none", "per_npu", "per_node", "pool"))
    if kind == "none":
        return NO_MEMORY
    return MemoryModel(
        kind=kind, latency_ps=rng.choice((0, 1000)), bandwidth=small_problems.GB, npus_per_node=rng.randint(1, 3)
    )


def _job(
    rng: random.Random,
    name: str,
    ranks: int,
    placement: tuple[int, ...],
    size: int,
    network: NetworkModel,
    memory: bool,
) -> Job:
    work = _Work(rng, ranks, memory)
    work.counts &= not network.split  # what counts is not split
    work.fill(rng.randint(1, size + 2))
    odd = 0.15 if network.msccl is None and not network.split else 0.0
    planner = None
    if network.profile is not None:
        pass  # collectives are not cut into chunks
    elif rng.random() < 0.15 and network.msccl is None and not network.split:
        planner = random_planner(rng)
    elif rng.random() < 0.2:
        planner = _dimensions(rng, ranks)
    delays = {r: rng.randint(0, 3) * 10**6 for r in range(ranks)} if rng.random() < 0.3 else {}
    speeds = {rng.randrange(ranks): Fraction(rng.choice((1, 2, 5)), 3)} if rng.random() < 0.2 else {}
    return Job(
        name=name,
        workload=work.workload(),
        placement=placement,
        algorithms=AnyAlgorithm(rng, odd=odd, blocks=network.msccl is not None),
        start_delay_ps=delays,
        compute_speed=speeds,
        planner=planner,
    )


def _dimensions(rng: random.Random, ranks: int) -> DimensionPlanner:
    halves = ranks % 2 == 0 and ranks > 2
    sizes = rng.choice(((ranks // 2, 2), (2, ranks // 2))) if halves else (ranks,)
    made: dict[tuple, Algorithm] = {}

    def make(collective: str, n: int, dim: int, nbytes: int) -> Algorithm:
        key = collective, n
        if key not in made:
            able = [a for a in ("ring", "direct", "halving_doubling") if collective in ALGORITHMS[a][0]]
            if n & (n - 1) and "halving_doubling" in able:
                able.remove("halving_doubling")
            made[key] = replace(build(rng.choice(able), collective, n), verdict=True)
        return made[key]

    how = {
        "chunks": rng.randint(1, 4),
        "active_chunks": rng.randint(1, 3),
        "queues": rng.randint(1, 2),
        "all_reduce": rng.choice((LOCAL_FIRST, BASELINE)),
        "order": rng.choice((FIXED, THEMIS)),
        "endpoint_delay": rng.choice((0, 0, 1000)),
    }
    return DimensionPlanner(
        sizes=sizes,
        make=make,
        how=Collectives(**how | ({"all_reduce": None} if how["order"] == THEMIS else {})),
        rate=(Fraction(10**9), Fraction(2 * 10**9))[: len(sizes)],
        latency_ps=(1_000_000,) * len(sizes),
    )


class _Work:
    """Nodes of the ranks of a job, in an order in which they could be carried out."""

    def __init__(self, rng: random.Random, ranks: int, memory: bool) -> None:
        self.rng, self.ranks, self.memory = rng, ranks, memory
        everyone = list(range(ranks))
        self.groups = {"back": tuple(everyone[::-1]), "even": tuple(everyone[::2])}
        if ranks > 2:
            self.groups["some"] = tuple(rng.sample(everyone, rng.randint(1, ranks - 1)))
        self.nodes: list[list[dict]] = [[] for _ in range(ranks)]
        self.names: list[list[str]] = [[] for _ in range(ranks)]
        #: Of messages of equal source, destination and tag: their bytes, so that the k-th fits the k-th.
        self.bytes: dict[tuple, int] = {}
        self.loose = rng.random() < 0.08  # messages without a partner, of unequal bytes
        self.counts = rng.random() < 0.15

    def add(self, rank: int, group: str = "", **node) -> dict:
        """One node more of a rank, after some of the last ones."""
        mine, rng = self.nodes[rank], self.rng
        recent = range(max(0, len(mine) - 3), len(mine))
        node["deps"] = set(rng.sample(recent, min(len(recent), rng.choice((0, 1, 1, 2)))))
        if self.counts and rng.random() < 0.4:
            node["counter"] = 0
        elif self.counts and rng.random() < 0.3:
            counted = sum(n.get("counter") == 0 for n in mine)
            node |= {"count_of": 0, "count_k": rng.randint(1, counted)} if counted else {}
        mine.append(node)
        self.names[rank].append(group)
        return node

    def fill(self, items: int, kinds: Sequence[str] = ()) -> None:
        if not kinds:
            kinds = ["collective"] * 4 + ["message"] * 4 * (self.ranks > 1) + ["compute"] * 3 + ["metadata"]
            kinds += ["memory"] * self.memory
        for _ in range(items):
            getattr(self, f"_{self.rng.choice(kinds)}")()

    def _collective(self) -> None:
        rng = self.rng
        group = rng.choice(("", "", *self.groups))
        members = self.groups.get(group, tuple(range(self.ranks)))
        kind = rng.choice(COLLECTIVES)
        node = {"type": NodeType.COMM_COLL, "comm_type": int(CommType[kind.upper()]), "comm_size": rng.choice(SIZES)}
        if kind in ("broadcast", "reduce", "gather", "scatter"):
            node["comm_root"] = rng.randrange(len(members))
        if rng.random() < 0.2:
            node["comm_priority"] = rng.randint(0, 3)
        for rank in members:
            mine = self.nodes[rank]
            # Collectives of a group are chained, so that every member calls them in one order.
            last = [i for i, n in enumerate(mine) if n["type"] == NodeType.COMM_COLL]
            made = self.add(rank, group, **node)
            made["deps"] |= set(last[-1:])
            made.pop("count_of", None)
            made.pop("count_k", None)

    def _message(self) -> None:
        rng = self.rng
        src, dst = rng.sample(range(self.ranks), 2)
        tag = rng.randint(0, 1)
        size = self.bytes.setdefault((src, dst, tag), rng.choice(SIZES))
        ends = {"comm_src": src, "comm_dst": dst, "comm_tag": tag}
        if not self.loose or rng.random() < 0.8:
            self.add(src, type=NodeType.COMM_SEND, comm_size=size, **ends)
        if self.loose and rng.random() < 0.1:
            size += 1
        if not self.loose or rng.random() < 0.8:
            self.add(dst, type=NodeType.COMM_RECV, comm_size=size, **ends)

    def _compute(self) -> None:
        rng = self.rng
        node: dict = {"type": NodeType.COMP, "is_cpu_op": rng.randint(0, 1)}
        if rng.random() < 0.3:
            node |= {"num_ops": rng.randint(1, 10) * 10**6, "tensor_size": rng.randint(1, 10**4)}
        else:
            node["micros"] = rng.randint(0, 4)
        self.add(rng.randrange(self.ranks), **node)

    def _memory(self) -> None:
        rng = self.rng
        kind = rng.choice((NodeType.MEM_LOAD, NodeType.MEM_STORE))
        self.add(rng.randrange(self.ranks), type=kind, tensor_size=rng.randint(0, 3) * 1000)

    def _metadata(self) -> None:
        self.add(self.rng.randrange(self.ranks), type=NodeType.METADATA)

    def workload(self) -> Workload:
        """What was written."""
        traces = []
        for nodes, names in zip(self.nodes, self.names, strict=True):
            some = nodes or [{"type": NodeType.COMP}]
            traces.append(small_problems.with_groups(small_problems.trace(some), names or [""]))
        return Workload(traces=tuple(traces), groups=self.groups)
