"""Convert a Plan to the kernel's input: records of templates, calls, instances and ranks, and arrays of numbers."""

from collections.abc import Iterable
from functools import cache
from typing import NamedTuple

import numpy as np

from astrasim_py.core.choices import FLUID
from astrasim_py.core.errors import SimulationError, UsageError
from astrasim_py.core.units import INT64_MAX
from astrasim_py.engine.compiled import records
from astrasim_py.engine.compiled.durations import link_changes
from astrasim_py.engine.compiled.flat import Fields, repeated
from astrasim_py.engine.compiled.templates import COUNTED, Templates
from astrasim_py.system.plan import CollectiveCall, Instance, Phase, Plan
from astrasim_py.system.problem import Problem
from astrasim_py.system.programs import BEGINS, ENDS, TileGates

_MODELS = {
    "cut_through": records.CUT_THROUGH,
    "store_and_forward": records.STORE_AND_FORWARD,
    "analytical": records.ANALYTICAL,
    "fluid": records.FLUID,
}


class KernelInput(NamedTuple):
    """The kernel's input, for one run: constants and tables by name (`records`).

    `tables`: ``links``, ``shared``, ``flows`` and ``ranks`` are the initial rows of tables that the kernel writes; it
    only reads the others. `tags`: by node of a template; the kernel does not use them.
    """

    constants: Fields
    tables: dict[str, np.ndarray]
    tags: np.ndarray

    @property
    def whole(self) -> bool:
        """Whether the run needs the optional parts of the kernel.

        These are of ``fluid``, thread blocks, queue pairs, detours, NICs, tiles, chunks, and orders of a hash set.
        """
        flags, known = self.tables["templates"]["flags"] & (records.STEPS | records.HASH_SET), self.constants
        optional = [known["model"] == records.FLUID, known["qps"] > 1, known["period"] > 0, known["nic"]]
        ranks = self.tables["ranks"]
        optional += [(ranks["gates"] >= 0).any(), (ranks["queues"] > 0).any()]
        return any(optional) or bool(flags.any())


def kernel_input(plan: Plan, *, rows: bool = False) -> KernelInput:
    """Convert a Plan to the kernel's input.

    `rows`: record nodes. Raises UsageError: a user-defined network model. Raises SimulationError: more than 2^31 - 1
    nodes or route links.
    """
    if plan.problem.network.factory is not None:
        raise UsageError("engine", "a user's network model runs on the SimPy engine only", "write --engine simpy")
    return _Building(plan, rows).input()


def _constants(problem: Problem) -> Fields:
    """Constants of a run that depend on the problem only."""
    network, semantics, limits, noise = problem.network, problem.semantics, problem.limits, problem.noise
    injected = network.send_completes == "injected"
    max_time = limits.max_sim_time_ps
    return {
        "model": _MODELS[network.model],
        "hold_latency": network.link_busy == "latency+bytes",
        "injected": injected,
        "counts_references": injected,
        "scheduled": semantics.event_order == "scheduled",
        "max_events": min(limits.max_events, INT64_MAX),
        "background": problem.background,
        "qps": network.qps,
        "nic": problem.nic is not None,
        "overhead": problem.nic.overhead if problem.nic else 0,
        "gap": problem.nic.gap if problem.nic else 0,
        "period": noise.detours.period if noise and noise.detours else 0,
        "detour": noise.detours.length if noise and noise.detours else 0,
        "max_time": -1 if max_time is None else min(max_time, INT64_MAX),
    }


class _Building(Templates):
    """Working state of `kernel_input`."""

    def __init__(self, plan: Plan, rows: bool) -> None:
        super().__init__(plan, {**dict.fromkeys(records.CONSTANTS, 0), **_constants(plan.problem)})
        self.rows = rows
        self.most_queues = self.most_running = self.channels = 0
        #: By call of a program per member: the place of its templates, and its channels.
        self.plain_calls: dict[tuple, tuple[int, int]] = {}

    def input(self) -> KernelInput:
        """Build the complete input."""
        plan, problem, constants = self.plan, self.problem, self.constants
        ranks = self.ranks()
        planned = plan.instances.column(lambda instance: instance.only_call is None)[plan.instance_of]
        first = np.unique(plan.calls.which, return_index=True)[1].tolist()
        fields = [self.call(c, planned=bool(planned[at])) for c, at in zip(plan.calls.values, first, strict=True)]
        calls = repeated(fields, plan.calls.which, records.CALL)
        calls["instance"][: len(plan.calls)] = plan.instance_of
        calls["rows"] = -1
        if self.rows:
            calls["rows"][: len(plan.calls)] = [self.longs.add(plan.first_rows(i)) for i in range(len(plan.calls))]
        found = [self.instance(instance) for instance in plan.instances.values]
        instances = repeated(found, plan.instances.which, records.INSTANCE)
        instances["first"][: len(plan.instances)] = plan.instances.first
        constants |= {
            "rank_count": plan.ranks,
            "npu_ranks": plan.npu_ranks,
            "call_count": len(plan.calls),
            "shared_channels": self.channels,
        }
        templates = self.templates.array()[:-1].view(records.TEMPLATE)
        self.routes()
        self.times(templates)
        nodes = self.sized_nodes()
        self.room(templates, fields, found)
        if max(len(nodes), self.ints.size, sum(map(len, self.paths))) >= 2**31 - 1:
            raise SimulationError(problem.topology.name, "has more than 2^31 - 1 nodes or links of routes")
        semantics = problem.semantics
        slots = (None, semantics.cpu_slots, semantics.compute_slots, semantics.comm_slots)
        tables = {
            "nodes": nodes,
            "templates": templates,
            "calls": calls,
            "instances": instances,
            "ranks": ranks,
            "links": self.links,
            "shared": self.durations.shared(),
            "flows": self.durations.flows(plan),
            "capacity": np.array([-1 if c is None else min(c, 2**31) for c in slots], dtype=np.int64),
            "ints": self.ints.array(),
            "longs": self.longs.array(),
            "small": np.concatenate([self.states.array(), self.longer.array()]),
            "path": np.concatenate([*self.paths, np.zeros(1, np.int32)]),
            "route_targets": np.append(plan.route_pairs // constants["qps"] % problem.topology.vertices, 0).astype(
                np.int32
            ),
        }
        # Extra bytes follow the states of the nodes.
        longer = tables["calls"]["extra_bytes"]
        longer[longer >= 0] += self.states.size + 1
        return KernelInput(constants, tables, np.concatenate([*self.tags, np.zeros(0, np.int64)]))

    # -- workloads ------------------------------------------------------------------------------------------------

    def ranks(self) -> np.ndarray:
        """RANK[ranks], with the templates of all workloads."""
        plan, memory = self.plan, self.problem.memory
        ranks = np.zeros(plan.ranks, dtype=records.RANK)
        ranks["npu"], ranks["delay"] = plan.npu_of, plan.start_delay
        ranks["server"] = {"per_node": ranks["npu"] // memory.npus_per_node, "pool": 0}.get(memory.kind, -1)
        own, switches = np.split(ranks["server"], [plan.npu_ranks])
        switches[:] = own.max(initial=-1) + 1 + np.arange(len(switches))
        self.constants["has_servers"] = bool((ranks["server"] >= 0).any())
        ranks["phase"] = plan.detour_phase if plan.detours else 0
        ranks["row"] = plan.first_rows(-1) if self.rows else -1
        instances = plan.workload.instances
        assert instances is not None  # of workloads
        ranks["instances"] = instances.column(self.ints.add)
        for number, (first, job) in enumerate(zip(plan.first_rank, self.problem.jobs, strict=True)):
            of_job = slice(first, first + job.ranks)
            mine = ranks[of_job]
            programs, matching = plan.workload.shared[of_job], plan.p2p[number]
            if self.by_bytes:
                self.channels = max(self.channels, matching.channels)
            else:
                mine["channels"] = self.channels
                self.channels += matching.channels
            for rank, program in enumerate(programs):
                # Ranks with the same nodes share a template.
                partner = matching.partners(rank)
                key = program, partner.tobytes()
                if key not in self.template_of:
                    self.template_of[key] = self.template(program, partner, workload=True)
                mine["template"][rank] = self.template_of[key]
            running = () if job.planner is None else tuple(min(int(c), 2**31) for c in job.planner.capacity)
            gates = cache(self.gates)
            mine["gates"] = [
                gates(plan.tiles[rank], len(program)) if rank in plan.tiles else -1
                for rank, program in enumerate(programs, first)
            ]
            mine["background"] = job.background
            mine["first"], mine["queues"] = first + plan.workload.shifts[of_job], len(running)
            mine["capacities"] = self.longs.add(running)
            self.most_running = max(self.most_running, min(sum(running), 2**31))
            self.most_queues = max(self.most_queues, len(running))
        return ranks

    def gates(self, gates: TileGates, nodes: int) -> int:
        """Add the gates of ranks with so many nodes; returns their place."""
        node, event, gate = gates.triggers.T
        place, held = np.zeros(nodes, dtype=np.int64), gates.collective
        order = np.argsort(held, kind="stable")
        waiting = self.ints.add(gate)
        holding = self.ints.add(order)
        for each in np.unique(np.concatenate([node, held[held >= 0]])).tolist():
            bounds = each * 2**32 + np.array([BEGINS, BEGINS + 1, ENDS + 1, 0, 2**31])
            low, begun, ended, first, high = (waiting + np.searchsorted(node * 2**32 + event, bounds)).tolist()
            own, end = (holding + np.searchsorted(held[order], [each, each + 1])).tolist()
            row = [begun, ended - begun, low, begun - low, own, end - own, 0, 0]
            if high > first:
                events = event[first - waiting : high - waiting]
                begins = first + np.searchsorted(events, np.arange(events[-1] + 2))
                row[6:] = self.ints.add(begins), len(begins) - 1
            place[each] = self.ints.add(row)
        return self.ints.add(np.concatenate([place, [len(held)], gates.count, np.stack([held, gates.node], 1).ravel()]))

    # -- collectives ----------------------------------------------------------------------------------------------

    def instance(self, instance: Instance) -> Fields:
        """Fields of an instance; switches of its call count as members."""
        every = instance.members if instance.only_call is None else tuple(instance.only_call.members)
        members = np.array(every, dtype=np.int64)
        order = np.argsort(members, kind="stable")
        sorted_at = self.ints.once((every, "sorted"), lambda: [members[order], order])
        row: Fields = {"members": len(members), "sorted": sorted_at}
        if instance.only_call is not None:
            return row
        chunks, turns = [], np.zeros(max(self.most_queues, 1), dtype=np.int64)
        for chunk in instance.chunks:
            phases = [
                (phase.queue, phase.priority, phase.first, turn, self.members_of(phase, members))
                for phase, turn in zip(chunk.phases, chunk.turns or [0] * len(chunk.phases), strict=True)
            ]
            chunks.append((chunk.priority, self.longs.add(phases), len(phases), bool(chunk.turns)))
            if chunk.turns:
                np.add.at(turns, [phase.queue for phase in chunk.phases], 1)
        row |= {"chunks": self.longs.add(chunks), "chunk_count": len(chunks), "turns": self.longs.add(turns)}
        return row | {"planned": 1}

    def members_of(self, phase: Phase, members: np.ndarray) -> int:
        """Add each member's call in a phase (from 0) and its position there; returns their place."""

        def places() -> np.ndarray:
            place = np.zeros((self.plan.ranks, 2), dtype=np.int64)
            for number, call in enumerate(phase.calls):
                who = np.asarray(call.members, dtype=np.int64)
                place[who, 0], place[who, 1] = number, np.arange(len(who))
            return place[members]

        return self.ints.once((phase.calls, members.tobytes()), places)

    def call(self, call: CollectiveCall, *, planned: bool) -> Fields:
        """Fields of a call, except its instance and rows."""
        row: Fields = {
            "flags": records.EMPTY,
            "members": len(call.members),
            "switches": len(call.switches),
            "ranks": self.ints.once(tuple(call.members), lambda: call.members),
            "extra_bytes": -1,
        }
        if not len(call.programs):
            return row
        rotated = None if call.rotation is None else self.rotated(call)
        row |= rotated or self.plain(call, shared=self.by_bytes and not planned and call.rotation is None)
        slots = row["members"] + 2 * row["channels"]
        states = slots + 2 * row.get("messages", 0) + row.pop("connections", 0)
        states += int(records.STEP_MESSAGE_WORDS) * row.get("steps", 0)
        words = states
        if call.base is not None and row["flags"] & records.JOINT:
            n, need = len(call.members), call.base.structure.need
            words += -(-len(need) * n // 8) + int(np.count_nonzero(need >= COUNTED)) * n
        return row | {"slots": slots, "states": states, "words": words}

    def plain(self, call: CollectiveCall, *, shared: bool) -> Fields:
        """Fields of a call of a program per member; `shared`: its messages match in the shared communicator."""
        connections, switches = call.connections, call.switches
        key = call.programs, call.matching, connections, switches
        if key not in self.plain_calls:
            matching = call.matching
            numbers: np.ndarray | list[int]
            one_by_one = matching is None or call.rotation is not None or connections is not None or switches
            if matching is not None and not one_by_one and call.different.plain:
                numbers = self.plain_templates(call.different, matching.partner)
            else:
                numbers = [
                    self.template(
                        program,
                        0 if matching is None else matching.partners(position),
                        connections=connections,
                        position=position,
                        rank=rank,
                    )
                    for position, (program, rank) in enumerate(zip(call.programs, call.members, strict=True))
                ]
            self.plain_calls[key] = self.ints.add(numbers), 0 if matching is None else matching.channel_count
        templates, channels = self.plain_calls[key]
        row: Fields = {"templates": templates, "flags": 0, "channels": channels}
        if shared:
            self.channels = max(self.channels, channels)
            row |= {"flags": records.SHARED, "channels": 0}
        if call.programs.blocks is not None:
            row["steps"] = row["messages"] = call.programs.blocks.messages
        return row | self.words_of(call)

    def words_of(self, call: CollectiveCall) -> Fields:
        """Messages and connections of a call, for which it needs words."""
        connections = call.connections
        if connections is None:
            return {}
        count = max(int(c.max(initial=-1)) for c in (*connections.connection, *connections.posts)) + 1
        count = connections.of_member * len(call.members) or count
        return {"messages": connections.messages, "connections": count}

    def rotated(self, call: CollectiveCall) -> Fields | None:
        """Fields of a call with one program for all members; None if their bytes differ too much."""
        base, rotation, matching, n = call.base, call.rotation, call.matching, len(call.members)
        assert base is not None and rotation is not None and matching is not None
        nbytes, longer = base.nbytes, None
        if not call.uniform_bytes:
            step = max(1, 2**22 // max(len(base), 1))
            batches = [range(begin, min(begin + step, n)) for begin in range(0, n, step)]
            nbytes = np.min([call.programs.nbytes_matrix(batch).min(axis=0) for batch in batches], axis=0)
            longer = np.empty((n, len(base)), dtype=np.uint8)
            for batch in batches:
                more = call.programs.nbytes_matrix(batch) - nbytes
                if more.max(initial=0) > 1:
                    return None
                longer[batch.start : batch.stop] = more
        key = base, matching, call.connections
        if key not in self.template_of:
            self.template_of[key] = self.template(base, matching.partner, nbytes=nbytes, connections=call.connections)
        template = self.template_of[key]
        flags, counters = records.ROTATED, base.counters
        if len(base) and not base.structure.buckets and not (counters and counters.number):
            flags |= records.JOINT
        row: Fields = {"flags": flags, "templates": template, "channels": matching.channel_count}
        row["dims"] = self.ints.once((rotation.dims, "digits"), lambda: _digits(rotation.dims, n))
        row |= self.words_of(call)
        return row if longer is None else row | {"extra_bytes": self.longer.add(longer)}

    # -- tables of the whole run ----------------------------------------------------------------------------------

    def routes(self) -> None:
        """Add the table of routes, or what the kernel computes routes from."""
        plan, topology, constants = self.plan, self.problem.topology, self.constants
        npus = np.arange(topology.npus, dtype=np.int64)
        if plan.route_links is not None:
            per_vertex = topology.vertices * constants["qps"]
            first = np.searchsorted(plan.route_pairs, np.arange(topology.vertices + 1) * per_vertex)
            constants |= {"route_first": self.longs.add(first), "route_ptr": self.longs.add(plan.route_ptr)}
            constants |= {"link_count": topology.links, "flow_count": len(plan.route_pairs)}
            self.paths, found = link_changes(plan, self.longs)
            constants |= {"changes": self.longs.add(found), "change_count": len(found)}
            constants["reroute_ps"] = topology.reroute_ps
            return
        dims = topology.dims
        steps = np.full((topology.npus, len(dims), 2), -1, dtype=np.int64)
        weight = 1
        for d, dim in enumerate(dims):
            digit = npus // weight % dim.size
            for way, change in enumerate((1, -1)):
                moved = (digit + change) % dim.size
                other = npus + (moved - digit) * weight
                near = moved - digit == change if dim.kind != "ring" else digit >= 0
                # Two NPUs have one link each way, which the tie-break takes in both directions.
                near &= other != npus
                ptr, links = topology.routes(npus[near], other[near])
                steps[near, d, way] = links[ptr[:-1]]
            weight *= dim.size
        self.paths = []
        constants |= {"computed": 1, "dims": len(dims), "steps": self.ints.add(steps)}
        constants["shape"] = self.ints.add([dim.size for dim in dims])
        constants["wraps"] = self.ints.add([dim.kind == "ring" for dim in dims])

    def times(self, templates: np.ndarray) -> None:
        """Add the tables of times by size, except those of links."""
        problem, plan, constants = self.problem, self.plan, self.constants
        constants |= {"nbytes": self.longs.add(plan.sizes), "sizes": len(plan.sizes), "request": -1}
        if problem.semantics.rendezvous_bytes:
            constants["request"] = plan.sizes.index(problem.semantics.rendezvous_bytes)
        if problem.network.model == "analytical":
            classes, delays = self.durations.of_routes(plan, list(self.variants))
            constants |= {"route_class": self.ints.add(classes), "delays": self.longs.add(delays)}
            constants["variants"] = len(self.variants)
        hops, fluid = sum(dim.size for dim in problem.topology.dims), problem.network.model == FLUID
        ptrs = [plan.route_ptr, *(state.ptr for _, state in plan.states)]
        if plan.route_links is not None:
            hops = max(int(np.diff(ptr).max(initial=0)) for ptr in ptrs)
        constants["step_rows"] = max(int(records.ROWS), hops + 4 if fluid or templates["steps"].any() else 0)

    def room(self, templates: np.ndarray, calls: Iterable[Fields], instances: Iterable[Fields]) -> None:
        """Set the most memory that one step of the kernel can take."""
        words, nodes = (int(templates[name].max(initial=1)) for name in ("words", "nodes"))
        chunks = sum(row.get("chunk_count", 0) for row in instances)
        starts = min(self.most_running, chunks) + 2 if chunks else 2
        of_call = max((row.get("words", 0) for row in calls), default=0)
        shares = chunks * int(records.RUN_WORDS + 8) + int(records.SHARE_WORDS) + 2 * self.most_queues + 16
        # Places of the arena are at most twice as large as requested.
        step = 2 * (starts * (words + 64) + shares) + 24 * nodes * (starts + 1) + 1024
        self.constants["arena_step"] = step + (starts if chunks else 1) * (2 * of_call + 8)
        self.constants["block_step"] = starts + 8


def _digits(dims: tuple[int, ...], ranks: int) -> np.ndarray:
    """The number of dimensions, these, and the digits of each position; a delta has those of the equal position."""
    digits = np.unravel_index(np.arange(ranks), dims, order="F")
    return np.concatenate([[len(dims)], dims, np.stack(digits, axis=1).ravel()])
