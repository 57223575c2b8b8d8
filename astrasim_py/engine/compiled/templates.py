"""Templates: the programs of a plan as records; the kernel makes blocks of nodes from them."""

from collections.abc import Mapping
from fractions import Fraction
from typing import Any

import numpy as np

from astrasim_py.core.rows import joined
from astrasim_py.engine.compiled import records
from astrasim_py.engine.compiled.durations import Times
from astrasim_py.engine.compiled.flat import Fields, Number, Numbers
from astrasim_py.system.durations import rate_units
from astrasim_py.system.plan import Plan
from astrasim_py.system.programs import (
    COLLECTIVE,
    COMPUTE,
    MEMORY,
    RECV,
    SEND,
    SOFTWARE,
    BlockSteps,
    Connections,
    Counters,
    LinkCosts,
    ProgramTable,
    RankProgram,
)

#: Needs from which on a word of the block counts them: a gate can add one to the others.
COUNTED = records.MOST_NEEDS - 1


class Templates:
    """The templates of a plan, the nodes in them, and the numbers that records point to."""

    def __init__(self, plan: Plan, constants: Fields) -> None:
        self.plan, self.problem, self.constants = plan, plan.problem, constants
        self.by_bytes = plan.problem.semantics.message_match == "bytes"
        self.ints, self.longs = Numbers(np.int32), Numbers(np.int64)
        #: Words of TEMPLATE.
        self.templates = Numbers(np.int64)
        #: Initial states of all nodes; bytes added to messages of the template.
        self.states, self.longer = Numbers(np.uint8), Numbers(np.uint8)
        #: By template: its nodes, without the sizes of messages and durations; these; and its program's tags.
        self.nodes: list[np.ndarray] = []
        self.amounts: list[np.ndarray] = []
        self.tags: list[np.ndarray] = []
        self.template_of: dict[tuple, int] = {}
        #: Extra ps per hop, numbered.
        self.variants: dict[int, int] = {0: 0}
        self.durations = Times(self.problem, plan.sizes)
        self.links = self.durations.links(self.longs)
        self.known: dict[Connections | int, Fields] = {}

    def template(
        self,
        program: RankProgram,
        partner: np.ndarray | int,
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
        table, n = ProgramTable.of([program]), len(program)
        row, nodes = self.common(table, partner)
        words, flags = int(row["counter_word"][0]), records.WORKLOAD if workload else 0
        nodes["size"] = np.where(table.kind == COLLECTIVE, program.instance, 0)
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
            flags |= records.CONNECTED
            if columns[:2].max(initial=-1) >= 0:
                flags |= records.SLOTTED | records.ADMITTED
        computing = self.problem.topology.computing
        if computing is not None and rank >= self.plan.npu_ranks and computing.latency_ps:
            flags |= records.CONNECTED
            row |= self.of_switch(rank, computing.latency_ps)
        if program.blocks is not None:
            flags |= records.STEPS | records.SLOTTED | records.ADMITTED
            row |= self.steps(program.blocks)
        if program.structure.buckets:
            flags |= records.HASH_SET
            words += 1
            row |= {"buckets": program.structure.buckets, "ids": self.longs.add(program.node_id.view(np.int64))}
        self.amounts.append(amounts(table.kind, program.nbytes if nbytes is None else nbytes, program.duration))
        return self.add(row | {"flags": flags, "words": max(words, 1)})

    def add(self, columns: Mapping[str, Number | np.ndarray], count: int = 1) -> int:
        """Add rows of TEMPLATE; returns the number of the first."""
        made = np.zeros(count, dtype=records.TEMPLATE)
        for name, values in columns.items():
            made[name] = values
        return self.templates.add(made.view(np.int64)) // len(made.dtype.names)

    def plain_templates(self, programs: ProgramTable, partner: np.ndarray) -> np.ndarray:
        """Add programs of an algorithm; returns their numbers. `partner`: as for `template`, one after the other."""
        row, _ = self.common(programs, partner)
        self.amounts.append(amounts(programs.kind, programs.column("nbytes"), programs.column("duration")))
        return self.add(row, len(programs)) + np.arange(len(programs))

    def common(self, programs: ProgramTable, partner: np.ndarray | int) -> tuple[dict[str, Any], np.ndarray]:
        """Fields of templates that no rules beyond the native ones change, and NODE[nodes] of all, which are added."""
        bounds, structures, kind, of_nodes = programs.bounds, programs.structures, programs.kind, programs.of_structures
        lengths, need, peer = np.diff(bounds), of_nodes(lambda structure: structure.need), programs.column("peer")
        nodes = np.zeros(len(kind), dtype=records.NODE)
        nodes["kind"], nodes["slot"], nodes["peer"] = kind, programs.column("slot"), peer
        nodes["partner"][peer >= 0] = partner
        succ = structures.column(lambda structure: self.ints.once((structure.key, "succ"), lambda: structure.succ))
        nodes["successor"] = of_nodes(lambda structure: structure.succ_ptr[:-1]) + np.repeat(succ, lengths)
        nodes["successors"] = of_nodes(lambda structure: np.diff(structure.succ_ptr))
        many = np.flatnonzero(need >= COUNTED)
        begins = np.searchsorted(many, bounds)
        own = np.diff(begins)
        nodes["count"][many] = np.arange(len(many)) - np.repeat(begins[:-1], own)
        words = -(-lengths // 8) + own
        row = {
            "first": self.states.size + bounds[:-1],
            "nodes": lengths,
            "roots": structures.column(lambda s: self.ints.once((s.key, "roots"), lambda: s.roots)),
            "root_count": structures.column(lambda structure: len(structure.roots)),
            "counts": self.ints.add(need[many]) + begins[:-1],
            "count_count": own,
            "counter_word": words,
            "words": np.maximum(words, 1),
        }
        self.states.add(np.where(need >= COUNTED, records.MOST_NEEDS, need))
        self.nodes.append(nodes)
        self.tags.append(programs.column("tag"))
        return row, nodes

    def steps(self, steps: BlockSteps) -> Fields:
        """Add the tables of the steps of a template's thread blocks; returns its fields."""
        costs, slots = steps.costs, self.ints.add(np.stack([steps.needs, steps.takes, steps.gives]))
        own: Fields = {
            "step_ps": costs.step,
            "half": costs.waits_half,
            "connections": slots,
            "steps": slots + len(steps.needs),
        }
        return own | self.rates(costs.rate, costs.links)

    def rates(self, pace: Fraction | None, links: LinkCosts | None) -> Fields:
        """Fields of a template with its own pace and links."""
        made: Fields = {"pace": -1 if pace is None else int(self.durations.holds(self.longs, [pace])[0]), "costs": -1}
        made["pace_units"] = 0 if pace is None else rate_units(pace)
        if links is not None:
            hold = self.durations.holds(self.longs, links.rates)[links.rate_class]
            made["costs"] = self.longs.once((links, "costs"), lambda: np.stack([links.latency_ps, hold], axis=1))
        return made

    def of_switch(self, rank: int, added: int) -> Fields:
        """Fields of the template of a switch, whose messages have `added` latency (ps) on their first link."""
        if rank not in self.known:
            topology = self.problem.topology
            latency = topology.latency_ps + (topology.src == self.plan.npu_of[rank]) * added
            self.known[rank] = self.rates(None, LinkCosts(latency, topology.bandwidth_class, topology.bandwidths))
        return self.known[rank]

    def columns_of(self, connections: Connections, n: int, position: int) -> np.ndarray:
        """int64[4, n]: by node of a member, the slots needed and freed, the connection, and what posts it."""
        if connections.slots:
            slots = connections.needs[position], connections.frees[position]
        else:
            slots = (np.full(n, -1, dtype=np.int64),) * 2
        return np.stack([*slots, connections.of_sends(position), connections.posts_of(position)])

    def connected(self, connections: Connections) -> Fields:
        """Fields of the templates of some connections."""
        if connections not in self.known:
            own: Fields = {
                "of_member": connections.of_member,
                "longer": connections.latency_ps,
                "post": connections.post_ps,
                "variant": self.variants.setdefault(connections.latency_ps, len(self.variants)),
            }
            self.known[connections] = own | self.rates(connections.pace, connections.links)
        return self.known[connections]

    def counters(self, counters: Counters, row: Fields, n: int) -> int:
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

    def sized_nodes(self) -> np.ndarray:
        """NODE[nodes] of all templates."""
        # As words: numpy compares the fields of every part that it joins.
        nodes = joined([part.view(np.int32) for part in self.nodes], np.int32).view(records.NODE)
        nodes = nodes if self.nodes else np.zeros(1, dtype=records.NODE)
        amount = joined(self.amounts, np.int64)
        kind = nodes["kind"]
        message, timed = (np.isin(kind, kinds) for kinds in ((SEND, RECV), (COMPUTE, MEMORY, SOFTWARE)))
        nodes["size"][message] = np.searchsorted(self.plan.sizes, amount[message])
        nodes["size"][timed] = np.arange(np.count_nonzero(timed))
        self.constants["duration"] = self.longs.add(amount[timed])
        return nodes


def amounts(kind: np.ndarray, nbytes: np.ndarray, duration: np.ndarray) -> np.ndarray:
    """int64[nodes]: bytes of messages, durations of other nodes."""
    return np.where((kind == SEND) | (kind == RECV), nbytes, duration)
