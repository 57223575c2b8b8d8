"""Templates: the programs of a plan as records; the kernel makes blocks of nodes from them."""

from collections.abc import Sequence
from fractions import Fraction
from functools import cache

import numpy as np

from astrasim_py.core.rows import joined, pointers, ranges
from astrasim_py.engine.compiled import records
from astrasim_py.engine.compiled.durations import Times
from astrasim_py.engine.compiled.flat import Numbers
from astrasim_py.system.durations import rate_units
from astrasim_py.system.matching import RotatedMatching
from astrasim_py.system.plan import Plan
from astrasim_py.system.programs import (
    COLLECTIVE,
    COMPUTE,
    MEMORY,
    RECV,
    SEND,
    BlockSteps,
    Connections,
    Counters,
    LinkCosts,
    Matching,
    RankProgram,
)

#: Needs from which on a word of the block counts them: a gate can add one to the others.
_COUNTED = records.MOST_NEEDS - 1
#: Columns of programs that templates have.
_COLUMNS = ("nbytes", "duration", "peer", "tag", "slot")


def is_plain(program: RankProgram) -> bool:
    """Whether a program has neither counters, nor steps, nor an order of its own."""
    return program.counters is None and program.blocks is None and not program.structure.buckets


class Templates:
    """The templates of a plan, the nodes in them, and the numbers that records point to."""

    def __init__(self, plan: Plan, constants: dict[str, int]) -> None:
        self.plan, self.problem, self.constants = plan, plan.problem, constants
        self.by_bytes = plan.problem.semantics.message_match == "bytes"
        self.ints, self.longs = Numbers(np.int32), Numbers(np.int64)
        #: Initial states of all nodes; bytes added to messages of the template.
        self.states, self.longer = Numbers(np.uint8), Numbers(np.uint8)
        self.templates: list[dict[str, int]] = []
        #: By template: its nodes, without the sizes of messages and durations; these; and its program's tags.
        self.nodes, self.amounts, self.tags = [], [], []
        self.template_of: dict[tuple, int] = {}
        #: Extra ps per hop, numbered.
        self.variants: dict[int, int] = {0: 0}
        self.durations = Times(self.problem, plan.sizes)
        self.links = self.durations.links(self.longs)
        self.connected, self.of_switch = cache(self.connected), cache(self.costs_of_switch)

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
        many = np.flatnonzero(structure.need >= _COUNTED)
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
        if structure.buckets:
            flags |= records.HASH_SET
            words += 1
            row |= {"buckets": structure.buckets, "ids": self.longs.add(program.node_id.view(np.int64))}
        self.states.add(np.where(structure.need >= _COUNTED, records.MOST_NEEDS, structure.need))
        self.nodes.append(nodes)
        message = (kind == SEND) | (kind == RECV)
        self.amounts.append(np.where(message, program.nbytes if nbytes is None else nbytes, program.duration))
        self.tags.append(program.tag)
        self.templates.append(row | {"flags": flags, "words": max(words, 1)})
        return len(self.templates) - 1

    def plain_templates(self, programs: Sequence[RankProgram], partners: Sequence[np.ndarray]) -> list[int]:
        """Add programs of an algorithm, of which none has counters, connections or steps; returns their numbers."""
        bounds = pointers([len(program) for program in programs])
        columns = {name: joined([getattr(p, name) for p in programs], np.int64) for name in _COLUMNS}
        structures = [program.structure for program in programs]
        kind, need = (joined([getattr(s, name) for s in structures], np.int32) for name in ("kind", "need"))
        roots = [self.ints.once((s.key, "roots"), lambda s=s: s.roots) for s in structures]
        succ = [self.ints.once((s.key, "succ"), lambda s=s: s.succ) for s in structures]
        nodes = np.zeros(len(kind), dtype=records.NODE)
        nodes["kind"], nodes["slot"], nodes["peer"] = kind, columns["slot"], columns["peer"]
        nodes["partner"][columns["peer"] >= 0] = joined(partners, np.int64)
        ptr = joined([s.succ_ptr for s in structures], np.int64)
        begin = np.arange(len(kind)) + np.repeat(np.arange(len(programs)), np.diff(bounds))
        nodes["successor"] = ptr[begin] + np.repeat(succ, np.diff(bounds))
        nodes["successors"] = ptr[begin + 1] - ptr[begin]
        many = np.flatnonzero(need >= _COUNTED)
        begins = np.searchsorted(many, bounds)
        counts, first = self.ints.add(need[many]), self.states.size
        nodes["count"][many] = np.arange(len(many)) - np.repeat(begins[:-1], np.diff(begins))
        for low, high, place, root, begin, end in zip(
            bounds[:-1].tolist(), bounds[1:].tolist(), roots, structures, begins[:-1].tolist(), begins[1:].tolist(),
            strict=True,
        ):  # fmt: skip
            words = -(-(high - low) // 8) + end - begin
            row = {"first": first + low, "nodes": high - low, "roots": place, "root_count": len(root.roots)}
            row |= {"counts": counts + begin, "count_count": end - begin, "counter_word": words, "flags": 0}
            self.templates.append(row | {"words": max(words, 1)})
        self.states.add(np.where(need >= _COUNTED, records.MOST_NEEDS, need))
        self.nodes.append(nodes)
        message = (kind == SEND) | (kind == RECV)
        self.amounts.append(np.where(message, columns["nbytes"], columns["duration"]))
        self.tags.append(columns["tag"])
        return list(range(len(self.templates) - len(programs), len(self.templates)))

    def steps(self, steps: BlockSteps) -> dict[str, int]:
        """Add the tables of the steps of a template's thread blocks; returns its fields."""
        costs, columns = steps.costs, np.stack([steps.takes, steps.gives, steps.needs])
        own = {"step_ps": costs.step, "half": costs.waits_half, "steps": self.ints.add(columns)}
        return own | self.rates(costs.rate, costs.links)

    def rates(self, pace: Fraction | None, links: LinkCosts | None) -> dict[str, int]:
        """Fields of a template with its own pace and links."""
        made = {"pace": -1 if pace is None else int(self.durations.holds(self.longs, [pace])[0]), "costs": -1}
        made["pace_units"] = 0 if pace is None else rate_units(pace)
        if links is not None:
            hold = self.durations.holds(self.longs, links.rates)[links.rate_class]
            made["costs"] = self.longs.once((links, "costs"), lambda: np.stack([links.latency_ps, hold], axis=1))
        return made

    def costs_of_switch(self, rank: int) -> LinkCosts:
        """Links for the messages of a switch, with added latency on the first."""
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

    def partners(
        self, programs: Sequence[RankProgram], matching: Matching | RotatedMatching | None
    ) -> tuple[list[np.ndarray], int]:
        """Partner node (or ~channel) of the sends and receives of each member, and the number of channels."""
        if matching is None:
            return [np.zeros(0, dtype=np.int64)] * len(programs), 0
        if isinstance(matching, RotatedMatching):
            matching = matching.flat()
        counts = matching.end - matching.begin
        owner, within = ranges(counts)
        place = matching.begin[owner] + within
        node, partner, received = matching.at[place], matching.keys[place], matching.received[place].astype(np.int64)
        if not len(place):
            return [partner] * len(programs), 0
        single, several = partner >= 0, partner < 0
        key, side = partner[single], received[single]
        ends = np.zeros((2, key.max(initial=-1) + 1), dtype=np.int64)
        ends[side, key] = node[single]
        partner[single] = ends[1 - side, key]
        if not self.by_bytes:
            # Renumber the channels of the communicator.
            partner[several] = ~np.unique(~partner[several], return_inverse=True)[1]
        channels = -partner[several].min(initial=0)
        return np.split(partner, np.cumsum(counts))[:-1], int(channels)

    def sized_nodes(self) -> np.ndarray:
        """NODE[nodes] of all templates."""
        # As words: numpy compares the fields of every part that it joins.
        nodes = joined([part.view(np.int32) for part in self.nodes], np.int32).view(records.NODE)
        nodes = nodes if self.nodes else np.zeros(1, dtype=records.NODE)
        amount = joined(self.amounts, np.int64)
        kind = nodes["kind"]
        message, timed = ((kind == first) | (kind == second) for first, second in ((SEND, RECV), (COMPUTE, MEMORY)))
        nodes["size"][message] = np.searchsorted(self.plan.sizes, amount[message])
        nodes["size"][timed] = np.arange(np.count_nonzero(timed))
        self.constants["duration"] = self.longs.add(amount[timed])
        return nodes
