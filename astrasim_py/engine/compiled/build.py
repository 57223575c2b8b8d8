"""Convert a Plan to the kernel's input: records of templates, calls, instances and ranks, and arrays of numbers."""

from collections.abc import Iterable, Sequence
from fractions import Fraction
from functools import cache
from typing import NamedTuple

import numpy as np

from astrasim_py.core.choices import FLUID
from astrasim_py.core.errors import SimulationError, UsageError
from astrasim_py.core.units import INT64_MAX
from astrasim_py.engine.compiled import records
from astrasim_py.engine.compiled.durations import Times, link_changes
from astrasim_py.engine.compiled.flat import Numbers, repeated, table_of
from astrasim_py.system.durations import rate_units
from astrasim_py.system.plan import (
    COLLECTIVE,
    COMPUTE,
    MEMORY,
    RECV,
    SEND,
    BlockSteps,
    CollectiveCall,
    Connections,
    Counters,
    Instance,
    LinkCosts,
    Matching,
    Phase,
    Plan,
    RankProgram,
)
from astrasim_py.system.problem import Problem
from astrasim_py.system.switches import actor_count

_MODELS = {
    "cut_through": records.CUT_THROUGH,
    "store_and_forward": records.STORE_AND_FORWARD,
    "analytical": records.ANALYTICAL,
    "fluid": records.FLUID,
}


class KernelInput(NamedTuple):
    """The kernel's input, read-only: constants and tables by name (`records`).

    `tables`: ``links``, ``flows`` and ``ranks`` are the initial rows of tables that the kernel writes. `tags`: by node
    of a template; the kernel does not use them.
    """

    constants: dict[str, int]
    tables: dict[str, np.ndarray]
    tags: np.ndarray

    @property
    def whole(self) -> bool:
        """Whether the run needs the optional parts of the kernel.

        These are of ``fluid``, thread blocks, queue pairs, detours, and NICs.
        """
        steps, known = self.tables["templates"]["flags"] & records.STEPS, self.constants
        optional = (known["model"] == records.FLUID, known["qps"] > 1, known["period"] > 0, known["nic"])
        return any(optional) or bool(steps.any())


def kernel_input(plan: Plan, *, rows: bool = False) -> KernelInput:
    """Convert a Plan to the kernel's input.

    `rows`: record nodes. Raises UsageError: a user-defined network model. Raises SimulationError: more than 2^31 - 1
    nodes or route links.
    """
    if plan.problem.network.factory is not None:
        raise UsageError("engine", "a network model of one's own runs on the SimPy engine only", "write --engine simpy")
    return _Building(plan, rows).input()


def _constants(problem: Problem) -> dict[str, int]:
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


class _Building:
    """Working state of `kernel_input`."""

    def __init__(self, plan: Plan, rows: bool) -> None:
        self.plan, self.problem, self.rows = plan, plan.problem, rows
        self.by_bytes = plan.problem.semantics.message_match == "bytes"
        self.constants = dict.fromkeys(records.CONSTANTS, 0) | _constants(plan.problem)
        self.ints, self.longs = Numbers(np.int32), Numbers(np.int64)
        #: Initial states of all nodes; bytes that messages are longer than those of their template.
        self.states, self.longer = Numbers(np.uint8), Numbers(np.uint8)
        self.templates: list[dict[str, int]] = []
        #: By template: its nodes, without the sizes of messages and durations; these; and its program's tags.
        self.nodes, self.amounts, self.tags = [], [], []
        self.template_of: dict[tuple, int] = {}
        #: Extra ps per hop, numbered.
        self.variants: dict[int, int] = {0: 0}
        self.durations = Times(self.problem, plan.sizes)
        self.links = self.durations.links(self.longs)
        self.most_queues = self.most_running = self.channels = 0
        self.connected, self.of_switch = cache(self.connected), cache(self.costs_of_switch)

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
        self.routes()
        self.times()
        nodes = self.sized_nodes()
        self.room(fields, found)
        if max(len(nodes), self.ints.size, sum(map(len, self.paths))) >= 2**31 - 1:
            raise SimulationError(problem.topology.name, "has more than 2^31 - 1 nodes or links of routes")
        semantics = problem.semantics
        slots = (None, semantics.cpu_slots, semantics.compute_slots, semantics.comm_slots)
        tables = {
            "nodes": nodes,
            "templates": table_of(self.templates, records.TEMPLATE),
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

    # -- templates ------------------------------------------------------------------------------------------------

    def template(
        self,
        program: RankProgram,
        partner: np.ndarray,
        *,
        workload: bool = False,
        nbytes: np.ndarray | None = None,
        connections: Connections | None = None,
        position: int = 0,
        rank: int = -1,
    ) -> int:
        """Add a program from which blocks are made; returns its number.

        `partner`: int[m]: of its sends and receives, the node of the matching receive or send in the peer's program;
        ``~channel`` if several messages can match. `workload`: its nodes take slots. `nbytes`: replaces the program's.
        `position`: in `connections`. `rank`: that runs it, if that matters.
        """
        structure, kind, n = program.structure, program.structure.kind, len(program)
        many = np.flatnonzero(structure.need >= records.MOST_NEEDS)
        words, flags = -(-n // 8) + len(many), records.WORKLOAD if workload else 0
        row = {
            "first": self.states.size,
            "nodes": n,
            "roots": self.ints.once((structure.key, "roots"), lambda: structure.roots),
            "root_count": len(structure.roots),
            "counts": self.ints.add(structure.need[many]),
            "count_count": len(many),
            "counter_word": words,
        }
        nodes = np.zeros(n, dtype=records.NODE)
        nodes["kind"], nodes["slot"], nodes["peer"] = kind, program.slot, program.peer
        nodes["partner"][program.peer >= 0] = partner
        nodes["successor"] = self.ints.once((structure.key, "succ"), lambda: structure.succ) + structure.succ_ptr[:-1]
        nodes["successors"] = np.diff(structure.succ_ptr)
        nodes["count"][many] = np.arange(len(many))
        nodes["size"] = np.where(kind == COLLECTIVE, program.instance, 0)
        if program.counters is not None:
            nodes["slot"][program.counters.detached] = records.DETACHED
            if program.counters.number:
                flags |= records.COUNTS
                words += self.counters(program.counters, row, n)
            if program.counters.detached.any():
                flags |= records.ADMITTED
                self.constants["counts_references"] = 1
        if connections is not None:
            columns = self.columns_of(connections, n, position)
            row |= self.connected(connections)
            row["connections"] = self.ints.add(columns)
            flags |= records.PACED | records.INTERLEAVED * connections.interleaved
            if columns[:2].max(initial=-1) >= 0:
                flags |= records.CONNECTED | records.ADMITTED
        if rank >= self.plan.npu_ranks and self.problem.topology.computing.latency_ps:
            flags |= records.PACED
            row |= self.rates(None, self.of_switch(rank))
        if program.blocks is not None:
            flags |= records.STEPS | records.ADMITTED
            row |= self.steps(program.blocks)
        self.states.add(np.minimum(structure.need, records.MOST_NEEDS))
        self.nodes.append(nodes)
        message = (kind == SEND) | (kind == RECV)
        self.amounts.append(np.where(message, program.nbytes if nbytes is None else nbytes, program.duration))
        self.tags.append(program.tag)
        self.templates.append(row | {"flags": flags, "words": max(words, 1)})
        return len(self.templates) - 1

    def steps(self, steps: BlockSteps) -> dict[str, int]:
        """Add the tables of the steps of a template's thread blocks; returns its fields."""
        costs, columns = steps.costs, np.stack([steps.takes, steps.gives, steps.needs])
        own = {"step_ps": costs.step, "half": costs.waits_half, "steps": self.ints.add(columns)}
        return own | self.rates(costs.rate, costs.links)

    def rates(self, pace: Fraction | None, links: LinkCosts | None) -> dict[str, int]:
        """Fields of a template with a pace of its own, and links of its own."""
        made = {"pace": -1 if pace is None else int(self.durations.holds(self.longs, [pace])[0]), "costs": -1}
        made["pace_units"] = 0 if pace is None else rate_units(pace)
        if links is not None:
            hold = self.durations.holds(self.longs, links.rates)[links.rate_class]
            made["costs"] = self.longs.once((links, "costs"), lambda: np.stack([links.latency_ps, hold], axis=1))
        return made

    def costs_of_switch(self, rank: int) -> LinkCosts:
        """What links are to the messages of a switch, which take longer on the first."""
        topology = self.problem.topology
        latency = topology.latency_ps + (topology.src == self.plan.npu_of[rank]) * topology.computing.latency_ps
        return LinkCosts(latency, topology.bandwidth_class, topology.bandwidths)

    def columns_of(self, connections: Connections, n: int, position: int) -> np.ndarray:
        """int64[4, n]: by node of a member, the slots needed and freed, the connection, and what posts it."""
        if connections.slots:
            slots = connections.needs[position], connections.frees[position]
        else:
            slots = (np.full(n, -1, dtype=np.int64),) * 2
        return np.stack([*slots, connections.of_sends(position), connections.posts_of(position)])

    def connected(self, connections: Connections) -> dict[str, int]:
        """Fields of the templates of some connections."""
        own = {
            "of_member": connections.of_member,
            "longer": connections.latency_ps,
            "post": connections.post_ps,
            "variant": self.variants.setdefault(connections.latency_ps, len(self.variants)),
        }
        return own | self.rates(connections.pace, connections.links)

    def counters(self, counters: Counters, row: dict[str, int], n: int) -> int:
        """Add the tables of a template's counters; returns the words per block that they need."""
        order = np.flatnonzero(counters.start >= 0)
        order = order[np.argsort(counters.start[order], kind="stable")]
        begins, ends = np.searchsorted(counters.start[order], [np.arange(n), np.arange(1, n + 1)])
        base = self.longs.add(order)
        columns = [counters.counts, counters.of, counters.k, base + begins, ends - begins]
        words, waiting = 2 * counters.number, []
        for counter in range(counters.number):
            mine = np.flatnonzero(counters.of == counter)
            first = mine[counters.start[mine] < 0]
            first = first[np.lexsort((first, counters.k[first]))]
            # This order is a valid heap.
            waiting += [words, len(mine), self.longs.add(np.stack([counters.k[first], first, first], 1)), len(first)]
            words += records.ENTRY.itemsize // 8 * len(mine)
        row["counting"] = self.longs.add(np.stack(columns, axis=1))
        row["counters"], row["waiting"] = counters.number, self.longs.add(waiting)
        return words

    def partners(self, programs: Sequence[RankProgram], matching: Matching) -> tuple[list[np.ndarray], int]:
        """Partner node (or ~channel) of the sends and receives of each member, and the number of channels."""
        messages = {program: np.flatnonzero(program.peer >= 0) for program in dict.fromkeys(programs)}
        at = [messages[program] for program in programs]
        if not any(map(len, messages.values())):
            return at, 0
        node, partner = np.concatenate(at), np.concatenate([matching[i][own] for i, own in enumerate(at)])
        received = [program.structure.kind[own] == RECV for program, own in zip(programs, at, strict=True)]
        received = np.concatenate(received).astype(np.int64)
        single, several = partner >= 0, partner < 0
        key, side = partner[single], received[single]
        ends = np.zeros((2, key.max(initial=-1) + 1), dtype=np.int64)
        ends[side, key] = node[single]
        partner[single] = ends[1 - side, key]
        if not self.by_bytes:
            # Number the channels of the communicator anew.
            partner[several] = ~np.unique(~partner[several], return_inverse=True)[1]
        channels = -partner[several].min(initial=0)
        return np.split(partner, np.cumsum([len(own) for own in at]))[:-1], int(channels)

    # -- workloads ------------------------------------------------------------------------------------------------

    def ranks(self) -> np.ndarray:
        """RANK[ranks], with the templates of all workloads."""
        plan, memory = self.plan, self.problem.memory
        called = np.array([self.ints.add(value.instances) for value in plan.workload.values], dtype=np.int64)
        ranks = np.zeros(plan.ranks, dtype=records.RANK)
        ranks["npu"], ranks["delay"] = plan.npu_of, plan.start_delay
        ranks["server"] = {"per_node": ranks["npu"] // memory.npus_per_node, "pool": 0}.get(memory.kind, -1)
        own, switches = np.split(ranks["server"], [plan.npu_ranks])
        switches[:] = own.max(initial=-1) + 1 + np.arange(len(switches))
        self.constants["has_servers"] = bool((ranks["server"] >= 0).any())
        ranks["phase"] = plan.detour_phase if plan.detours else 0
        ranks["row"] = plan.first_rows(-1) if self.rows else -1
        ranks["instances"] = called[plan.workload.which]
        for number, (first, job) in enumerate(zip(plan.first_rank, self.problem.jobs, strict=True)):
            own = slice(first, first + job.ranks)
            mine = ranks[own]
            programs = plan.workload.shared[own]
            partners, channels = self.partners(programs, plan.p2p[number])
            if self.by_bytes:
                self.channels = max(self.channels, channels)
            else:
                mine["channels"] = self.channels
                self.channels += channels
            for row, program, partner in zip(mine, programs, partners, strict=True):
                # Ranks with the same nodes share a template.
                key = program, partner.tobytes()
                if key not in self.template_of:
                    self.template_of[key] = self.template(program, partner, workload=True)
                row["template"] = self.template_of[key]
            running = () if job.planner is None else tuple(min(int(c), 2**31) for c in job.planner.capacity)
            mine["background"] = job.background
            mine["first"], mine["queues"] = first + plan.workload.shifts[own], len(running)
            mine["capacities"] = self.longs.add(running)
            self.most_running = max(self.most_running, min(sum(running), 2**31))
            self.most_queues = max(self.most_queues, len(running))
        return ranks

    # -- collectives ----------------------------------------------------------------------------------------------

    def instance(self, instance: Instance) -> dict[str, int]:
        """Fields of an instance; switches of its call count as members."""
        every = instance.members if instance.only_call is None else tuple(instance.only_call.members)
        members = np.array(every, dtype=np.int64)
        order = np.argsort(members, kind="stable")
        sorted_at = self.ints.once((every, "sorted"), lambda: [members[order], order])
        row = {"members": len(members), "sorted": sorted_at}
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

    def call(self, call: CollectiveCall, *, planned: bool) -> dict[str, int]:
        """Fields of a call, but for its instance and rows."""
        row = {
            "flags": records.EMPTY,
            "members": len(call.members),
            "switches": actor_count(call),
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
        if row["flags"] & records.JOINT:
            template, n = self.templates[row["templates"]], row["members"]
            words += -(-template["nodes"] * n // 8) + template["count_count"] * n
        return row | {"slots": slots, "states": states, "words": words}

    def plain(self, call: CollectiveCall, *, shared: bool) -> dict[str, int]:
        """Fields of a call of a program per member; `shared`: its messages match in the shared communicator."""
        connections, switches = call.connections, tuple(call.members[len(call.members) - actor_count(call) :])
        key = call.programs, call.matching, connections, switches
        if key not in self.template_of:
            if call.matching is None:
                partners, channels = [0] * len(call.programs), 0
            else:
                partners, channels = self.partners(call.programs, call.matching)
            numbers = [
                self.template(program, partner, connections=connections, position=position, rank=rank)
                for position, (program, partner, rank) in enumerate(
                    zip(call.programs, partners, call.members, strict=True)
                )
            ]
            self.template_of[key] = self.ints.add(numbers), channels
        templates, channels = self.template_of[key]
        row = {"templates": templates, "flags": 0, "channels": channels}
        if shared:
            self.channels = max(self.channels, channels)
            row |= {"flags": records.SHARED, "channels": 0}
        if call.programs[0].blocks is not None:
            row["steps"] = call.programs[0].blocks.messages
        return row | self.words_of(call)

    def words_of(self, call: CollectiveCall) -> dict[str, int]:
        """Messages and connections of a call, for which it needs words."""
        connections = call.connections
        if connections is None:
            return {}
        count = max(int(c.max(initial=-1)) for c in (*connections.connection, *connections.posts)) + 1
        count = connections.of_member * len(call.members) or count
        return {"messages": connections.messages, "connections": count}

    def rotated(self, call: CollectiveCall) -> dict[str, int] | None:
        """Fields of a call with one program for all members; None if their bytes differ too much."""
        base, rotation, n = call.base, call.rotation, len(call.members)
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
        key = base, call.matching, call.connections
        if key not in self.template_of:
            partner = call.matching.partner[base.peer >= 0]
            self.template_of[key] = self.template(base, partner, nbytes=nbytes, connections=call.connections)
        template = self.template_of[key]
        flags, made = records.ROTATED, self.templates[template]
        if made["nodes"] and not made["flags"] & records.COUNTS:
            flags |= records.JOINT
        row = {"flags": flags, "templates": template, "channels": call.matching.channels * n}
        row["dims"] = self.ints.once((rotation.dims, "digits"), lambda: _digits(rotation.dims, n))
        row |= self.words_of(call)
        return row if longer is None else row | {"extra_bytes": self.longer.add(longer)}

    # -- tables of the whole run ----------------------------------------------------------------------------------

    def sized_nodes(self) -> np.ndarray:
        """NODE[nodes] of all templates."""
        nodes = np.concatenate([*self.nodes, np.zeros(0 if self.nodes else 1, dtype=records.NODE)])
        amount = np.concatenate([*self.amounts, np.zeros(0, dtype=np.int64)])
        kind = nodes["kind"]
        message, timed = ((kind == first) | (kind == second) for first, second in ((SEND, RECV), (COMPUTE, MEMORY)))
        nodes["size"][message] = np.searchsorted(self.plan.sizes, amount[message])
        nodes["size"][timed] = np.arange(np.count_nonzero(timed))
        self.constants["duration"] = self.longs.add(amount[timed])
        return nodes

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

    def times(self) -> None:
        """Add the tables of times by size, but for those of links."""
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
        hops = max(max(np.diff(ptr), default=0) for ptr in ptrs) if plan.route_links is not None else hops
        constants["step_rows"] = max(
            records.ROWS, int(hops) + 4 if fluid or any(row.get("steps") for row in self.templates) else 0
        )

    def room(self, calls: Iterable[dict[str, int]], instances: Iterable[dict[str, int]]) -> None:
        """Set the most memory that one step of the kernel can take."""
        words, nodes = (max((row[name] for row in self.templates), default=1) for name in ("words", "nodes"))
        chunks = sum(row.get("chunk_count", 0) for row in instances)
        starts = min(self.most_running, chunks) + 2 if chunks else 2
        of_call = max((row.get("words", 0) for row in calls), default=0)
        shares = chunks * (records.RUN_WORDS + 8) + records.SHARE_WORDS + 2 * self.most_queues + 16
        # Places of the arena are at most twice as large as requested.
        step = 2 * (starts * (words + 64) + shares) + 24 * nodes * (starts + 1) + 1024
        self.constants["arena_step"] = step + (starts if chunks else 1) * (2 * of_call + 8)
        self.constants["block_step"] = starts + 8


def _digits(dims: tuple[int, ...], ranks: int) -> np.ndarray:
    """The number of dimensions, these, and the digits of each position; a delta has those of the equal position."""
    digits = np.unravel_index(np.arange(ranks), dims, order="F")
    return np.concatenate([[len(dims)], dims, np.stack(digits, axis=1).ravel()])
