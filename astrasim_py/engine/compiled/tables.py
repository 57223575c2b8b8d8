"""Builder of the kernel's input: templates, calls, instances and ranks as records, numbers in flat arrays."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from astrasim_py.core.errors import SimulationError
from astrasim_py.engine.compiled import records
from astrasim_py.engine.compiled.durations import Durations, route_classes
from astrasim_py.engine.compiled.records import MOST_NEEDS
from astrasim_py.system.plan import COLLECTIVE, COMPUTE, MEMORY, RECV, SEND, Counters, RankProgram
from astrasim_py.system.problem import Problem


class KernelInput(NamedTuple):
    """The kernel's input, read-only: `constants` by name, and tables of records.

    `links` and `ranks` are the initial rows of tables that the kernel writes; `tags`, by node of a template, is not
    used by the kernel.
    """

    constants: dict[str, int]
    nodes: np.ndarray
    ints: np.ndarray
    longs: np.ndarray
    small: np.ndarray
    path: np.ndarray
    route_pairs: np.ndarray
    templates: np.ndarray
    calls: np.ndarray
    instances: np.ndarray
    capacity: np.ndarray
    ranks: np.ndarray
    links: np.ndarray
    tags: np.ndarray


class Rotated(NamedTuple):
    """Peers in the calls of a rotated program, as places in the input."""

    peers: int  # in `ints`: peer by position and number of a delta; -1: computed from `dims`
    deltas: int  # number of deltas
    dims: int  # in `ints`: number of dimensions, these, digits of each delta


@dataclass(frozen=True, slots=True, eq=False)
class Connected:
    """Connections of one template under the MSCCL link model: columns of `MscclConnections`."""

    needs: np.ndarray
    frees: np.ndarray
    connection: np.ndarray
    latency_ps: int


@dataclass(frozen=True, slots=True, eq=False)
class _Template:
    """Data of the nodes of a template."""

    program: RankProgram
    partner: np.ndarray
    route: np.ndarray | None
    peer: np.ndarray
    nbytes: np.ndarray
    workload: bool


class _Numbers:
    """A growing flat array."""

    def __init__(self, dtype: type) -> None:
        self.dtype = dtype
        self.parts: list[np.ndarray] = []
        self.size = 0

    def add(self, values: Sequence[int] | np.ndarray) -> int:
        """Append values; returns the index of the first."""
        part = np.asarray(values, dtype=self.dtype).ravel()
        begin = self.size
        self.parts.append(part)
        self.size += len(part)
        return begin

    def array(self) -> np.ndarray:
        """All values and a final 0: never empty."""
        return np.concatenate([*self.parts, np.zeros(1, dtype=self.dtype)])


class _Rows:
    """A growing array of records."""

    def __init__(self, dtype: np.dtype) -> None:
        self.dtype = dtype
        self.rows: list[dict[str, int]] = []

    def add(self, **fields: int) -> int:
        """Append a record, 0 in all other fields; returns its number."""
        self.rows.append(fields)
        return len(self.rows) - 1

    def array(self) -> np.ndarray:
        """All records; at least one."""
        made = np.zeros(max(len(self.rows), 1), dtype=self.dtype)
        for name in self.dtype.names:
            if any(name in row for row in self.rows):
                made[name] = [row.get(name, 0) for row in self.rows]
        return made


class Tables:
    """Builder of a `KernelInput`.

    `constants`: those of `records.CONSTANTS` that depend on the problem only.
    """

    def __init__(self, problem: Problem, constants: dict[str, int]) -> None:
        self.problem, self.constants = problem, constants
        self.ints, self.longs, self.small = _Numbers(np.int32), _Numbers(np.int64), _Numbers(np.uint8)
        self.templates, self.calls = _Rows(records.TEMPLATE), _Rows(records.CALL)
        self.instances, self.ranks = _Rows(records.INSTANCE), _Rows(records.RANK)
        self.made: list[_Template] = []
        self.first: list[int] = [0]
        self.extra_sizes: list[np.ndarray] = []
        self.variants: dict[int, int] = {0: 0}
        self.structures: dict[bytes, tuple[int, int]] = {}
        self.members: dict[object, tuple[int, int]] = {}
        self.templates_at: dict[tuple, int] = {}
        self.capacities: dict[tuple[int, ...], int] = {(): 0}
        self.path, self.ptr = np.zeros(0, np.int32), np.zeros(1, np.int64)
        self.pairs = np.zeros(0, np.int64)
        self.words_of_calls = self.chunk_count = self.running = self.joint = self.most_queues = 0

    def routes(self, ptr: np.ndarray, path: np.ndarray, pairs: np.ndarray) -> None:
        """Set the routes: CSR of links, and each route's pair src NPU × NPUs + dst NPU, ascending."""
        self.ptr = np.asarray(ptr, dtype=np.int64)
        self.path = np.require(path, dtype=np.int32, requirements=["C"])
        self.pairs = np.require(pairs, dtype=np.int64, requirements=["C"])

    def compute_routes(self) -> None:
        """Let the kernel compute routes; requires `walked` routes and a model other than analytical."""
        topology = self.problem.topology
        dims = topology.dims
        npu = np.arange(topology.npus, dtype=np.int64)
        steps = np.full((topology.npus, len(dims), 2), -1, dtype=np.int64)
        weight = 1
        for d, dim in enumerate(dims):
            digit = npu // weight % dim.size
            for way, change in enumerate((1, -1)):
                other = npu + ((digit + change) % dim.size - digit) * weight
                near = (digit + change >= 0) & (digit + change < dim.size) if dim.kind != "ring" else digit >= 0
                # Two NPUs have one link each way, which the tie-break takes in both directions.
                near &= other != npu
                ptr, links = topology.routes(npu[near], other[near])
                steps[near, d, way] = links[ptr[:-1]]
            weight *= dim.size
        self.constants |= {
            "computed": 1,
            "dims": len(dims),
            "shape": self.ints.add([d.size for d in dims]),
            "wraps": self.ints.add([d.kind == "ring" for d in dims]),
            "steps": self.ints.add(steps),
        }

    # -- templates ------------------------------------------------------------------------------------------------

    def template(
        self,
        program: RankProgram,
        partner: np.ndarray,
        route: np.ndarray | None = None,
        *,
        workload: bool = False,
        peer: np.ndarray | None = None,
        nbytes: np.ndarray | None = None,
        connected: Connected | None = None,
    ) -> int:
        """Add a program from which blocks are made; returns its number.

        `partner`: int[n]: node of the matching receive or send in the peer's program; ``~channel`` if several messages
        can match. `route`: int[n]: number of the route to the peer (a workload); column of the call's table of routes
        (a call). `workload`: its nodes take slots. `peer`, `nbytes`: replace the program's. `connected`: under the
        MSCCL link model.
        """
        structure, n = program.structure, len(program)
        if structure.key not in self.structures:
            self.structures[structure.key] = (self.ints.add(structure.succ), self.ints.add(structure.roots))
        many = np.flatnonzero(structure.need >= MOST_NEEDS)
        flags, words = (records.WORKLOAD if workload else 0), -(-n // 8) + len(many)
        row = {
            "first": self.first[-1],
            "nodes": n,
            "roots": self.structures[structure.key][1],
            "root_count": len(structure.roots),
            "counts": self.ints.add(structure.need[many]),
            "count_count": len(many),
            "counter_word": words,
        }
        if program.counters is not None:
            if program.counters.number:
                flags |= records.COUNTS
                words += self._counters(program.counters, row, n)
            if program.counters.detached.any():
                flags |= records.ADMITTED
                self.constants["counts_references"] = 1
        if connected is not None:
            flags |= records.PACED
            if max(connected.needs.max(initial=-1), connected.frees.max(initial=-1)) >= 0:
                flags |= records.CONNECTED | records.ADMITTED
            columns = np.stack([connected.needs, connected.frees, connected.connection])
            row |= {"connections": self.ints.add(columns), "longer": connected.latency_ps}
            row["variant"] = self.variants.setdefault(connected.latency_ps, len(self.variants))
        self.first.append(self.first[-1] + n)
        self.made.append(
            _Template(
                program,
                partner,
                route,
                program.peer if peer is None else peer,
                program.nbytes if nbytes is None else nbytes,
                workload,
            )
        )
        return self.templates.add(**row, flags=flags, words=max(words, 1))

    def _counters(self, counters: Counters, row: dict[str, int], n: int) -> int:
        """Add the tables of a template's counters; returns the words per block that they need."""
        order = np.flatnonzero(counters.start >= 0)
        order = order[np.argsort(counters.start[order], kind="stable")]
        begins = np.searchsorted(counters.start[order], np.arange(n))
        ends = np.searchsorted(counters.start[order], np.arange(n), side="right")
        base = self.longs.add(order)
        columns = [counters.counts, counters.of, counters.k, base + begins, ends - begins]
        row["counting"] = self.longs.add(np.stack(columns, axis=1))
        words, waiting = 2 * counters.number, []
        for counter in range(counters.number):
            mine = np.flatnonzero(counters.of == counter)
            first = mine[counters.start[mine] < 0]
            first = first[np.lexsort((first, counters.k[first]))]
            # This order is a valid heap.
            begin = self.longs.add(np.stack([counters.k[first], first, first], axis=1))
            waiting += [words, len(mine), begin, len(first)]
            words += records.ENTRY.itemsize // 8 * len(mine)
        row["counters"], row["waiting"] = counters.number, self.longs.add(waiting)
        return words

    # -- calls, instances, ranks ---------------------------------------------------------------------------------

    def ranks_of(self, members: Sequence[int]) -> tuple[int, int]:
        """Add the members of a group; returns their places by position, and sorted with their positions."""
        key = members if isinstance(members, range) else tuple(members)
        if key not in self.members:
            ranks = np.asarray(members, dtype=np.int64)
            order = np.argsort(ranks, kind="stable")
            self.members[key] = (self.ints.add(ranks), self.ints.add(np.concatenate([ranks[order], order])))
        return self.members[key]

    def call(self, instance: int, members: Sequence[int], rows: np.ndarray | None, **fields: int) -> int:
        """Add a call; returns its number.

        `instance`: its instance; ascending. `members`: ranks by position. `rows`: int64[members]: first row of each
        member in the node table, if recorded. `fields`: of `records.CALL`.
        """
        row = {"flags": 0, "peers": -1, "routes": -1, "extra_bytes": -1, "channels": 0, "messages": 0, "connections": 0}
        row |= {"instance": instance, "members": len(members), "ranks": self.ranks_of(members)[0]} | fields
        row["rows"] = -1 if rows is None else self.longs.add(rows)
        words = row["members"] + 2 * row["channels"] + 2 * row["messages"] + row["connections"] + 3 * 4
        self.words_of_calls = max(self.words_of_calls, words)
        return self.calls.add(**row)

    def same_call(self, of: int, instance: int, rows: np.ndarray | None) -> int:
        """Add a copy of a call for another instance; returns its number."""
        row = self.calls.rows[of] | {"instance": instance, "rows": -1 if rows is None else self.longs.add(rows)}
        return self.calls.add(**row)

    def plain(self, templates: tuple[int, ...], routes: np.ndarray | None) -> dict[str, int]:
        """Fields of a call with a template per position; no templates: nothing to do.

        `routes`: int[members, columns]: number of the route from each member, by the column that its template states.
        """
        if templates not in self.templates_at:
            self.templates_at[templates] = self.ints.add(templates)
        fields = {"templates": self.templates_at[templates], "flags": 0 if templates else records.EMPTY}
        if routes is not None:
            fields |= {"deltas": routes.shape[1], "routes": self.ints.add(routes)}
        return fields

    def rotated(
        self, template: int, rotation: Rotated, members: int, routes: np.ndarray | None, extra: np.ndarray | None
    ) -> dict[str, int]:
        """Fields of a call with one template for all members.

        `routes`: int[members, deltas]: number of the route from each member by the number of the delta. `extra`:
        uint8[members, nodes] of 0 or 1: bytes that a member's messages are longer than the template's.
        """
        row = self.templates.rows[template]
        fields = {"templates": template, "flags": records.ROTATED, **rotation._asdict()}
        if not row["count_count"] and not row["flags"] & records.COUNTS and row["nodes"]:
            # The state of its nodes is one byte each.
            fields["flags"] |= records.JOINT
            self.joint = max(self.joint, -(-members * row["nodes"] // 8))
        if extra is not None:
            fields["extra_bytes"] = self.small.add(extra)
            self.extra_sizes.append(self.made[template].nbytes[extra.any(axis=0)] + 1)
        if routes is not None:
            fields["routes"] = self.ints.add(routes)
        return fields

    def rotation(self, peers: np.ndarray | None, dims: tuple[int, ...], deltas: np.ndarray) -> Rotated:
        """Peers in the calls of a rotated program.

        `peers`: int64[members, deltas]: peer by position and number of a delta; None: computed by the kernel. `deltas`:
        int64[deltas]: offset added to a position, digit by digit.
        """
        digits, rest = [], np.asarray(deltas, dtype=np.int64)
        for size in dims:
            digits.append(rest % size)
            rest = rest // size
        of_delta = np.stack(digits, axis=1) if digits else np.zeros((len(deltas), 0), dtype=np.int64)
        numbers = np.concatenate([[len(digits)], dims, of_delta.ravel()])
        return Rotated(-1 if peers is None else self.ints.add(peers), len(deltas), self.ints.add(numbers))

    def chunks(
        self, chunks: Sequence[tuple[int, bool, Sequence[tuple[int, int, int, int, int]]]], queues: int
    ) -> dict[str, int]:
        """Fields of a planned instance.

        `chunks`: priority, whether it has turns, and phases as (queue, priority, first call, turn, place in `ints` of
        each member's call and position). `queues`: queues of its planner.
        """
        flat, turns = [], [0] * max(queues, 1)
        for priority, has_turns, phases in chunks:
            flat += [priority, self.longs.add(np.array(phases, dtype=np.int64)), len(phases), int(has_turns)]
            for phase in phases if has_turns else ():
                turns[phase[0]] += 1
        self.chunk_count += len(chunks)
        at, turns_at = self.longs.add(flat), self.longs.add(turns)
        return {"planned": 1, "chunks": at, "chunk_count": len(chunks), "turns": turns_at}

    def rank(self, capacity: Sequence[int], **fields: int) -> int:
        """Add a rank with fields of `records.RANK`; `capacity`: chunks that each of its queues runs at once."""
        running = tuple(min(int(c), 2**31) for c in capacity)
        self.running = max(self.running, min(sum(running), 2**31))
        self.most_queues = max(self.most_queues, len(running))
        if running not in self.capacities:
            self.capacities[running] = self.longs.add(running)
        return self.ranks.add(queues=len(running), capacities=self.capacities[running], **fields)

    # -- the complete input ------------------------------------------------------------------------------------------

    def input(self) -> KernelInput:
        """Build the input.
        Raises SimulationError: more nodes than 2^31 - 1.
        """
        kind = self._column([t.program.structure.kind for t in self.made], np.int8).astype(np.int32)
        if len(kind) >= 2**31 - 1 or self.ints.size >= 2**31 - 1 or len(self.path) >= 2**31 - 1:
            raise SimulationError(self.problem.topology.name, "has more than 2^31 - 1 nodes or links of routes")
        nbytes = self._column([t.nbytes for t in self.made])
        request = self.problem.semantics.rendezvous_bytes
        message, timed = (kind == SEND) | (kind == RECV), (kind == COMPUTE) | (kind == MEMORY)
        every, sent = (
            np.unique(np.concatenate([_changes(nbytes[which]), [request], *self.extra_sizes]))
            for which in (message, kind == SEND)
        )
        duration = self._column([t.program.duration for t in self.made])
        durations = np.unique(_changes(duration[timed]))
        nodes = np.zeros(max(len(kind), 1), dtype=records.NODE)
        used = nodes[: len(kind)]
        used["kind"], used["count"] = kind, -1
        used["size"][message] = np.searchsorted(every, nbytes[message])
        used["size"][timed] = np.searchsorted(durations, duration[timed])
        small = np.zeros(len(kind), dtype=np.uint8)
        for made, begin, end in zip(self.made, self.first, self.first[1:], strict=False):
            self._fill(used[begin:end], small[begin:end], made)
        constants = self.constants
        constants |= {"duration": self.longs.add(durations), "nbytes": self.longs.add(every), "sizes": len(every)}
        constants["request"] = int(np.searchsorted(every, request)) if request else -1
        constants["route_ptr"], constants["pair_count"] = self.longs.add(self.ptr), max(len(self.pairs), 1)
        constants |= {"rank_count": len(self.ranks.rows), "call_count": len(self.calls.rows)}
        links = self._times(Durations(self.problem, every, sent))
        self._room()
        calls = self.calls.array()
        # Extra bytes follow the states of the nodes.
        calls["extra_bytes"][calls["extra_bytes"] >= 0] += len(small)
        slots = (
            self.problem.semantics.cpu_slots,
            self.problem.semantics.compute_slots,
            self.problem.semantics.comm_slots,
        )
        return KernelInput(
            constants=constants,
            nodes=nodes,
            ints=self.ints.array(),
            longs=self.longs.array(),
            small=np.concatenate([small, self.small.array()]),
            path=self.path if len(self.path) else np.zeros(1, dtype=np.int32),
            route_pairs=self.pairs if len(self.pairs) else np.zeros(1, dtype=np.int64),
            templates=self.templates.array(),
            calls=calls,
            instances=self.instances.array(),
            capacity=np.array([-1, *(-1 if c is None else min(c, 2**31) for c in slots)], dtype=np.int64),
            ranks=self.ranks.array(),
            links=links,
            tags=self._column([t.program.tag for t in self.made]),
        )

    @staticmethod
    def _column(parts: list[np.ndarray], dtype: type = np.int64) -> np.ndarray:
        return np.concatenate([*parts, np.zeros(0, dtype)])

    def _times(self, durations: Durations) -> np.ndarray:
        """Add the tables of times by size; returns the links."""
        links = durations.links(self.longs)
        connections = self.problem.network.msccl
        if connections is not None and connections.channel_bandwidth is not None:
            self.constants["pace"] = self.longs.add(durations.serialization(connections.channel_bandwidth))
        if self.problem.network.model == "analytical":
            number, classes = route_classes(self.problem, self.ptr, self.path, self.pairs)
            delays = durations.delays(classes, list(self.variants))
            self.constants |= {"route_class": self.ints.add(number), "delays": self.longs.add(delays)}
            self.constants["variants"] = len(self.variants)
        return links

    def _fill(self, rows: np.ndarray, small: np.ndarray, made: _Template) -> None:
        """Fill in the nodes of one template."""
        program, structure = made.program, made.program.structure
        if made.workload:
            rows["kind"] |= program.slot.astype(np.int32) << 3
        if program.counters is not None:
            rows["kind"][program.counters.detached] |= records.DETACHED
        instances = structure.kind == COLLECTIVE
        rows["size"][instances] = program.instance[instances]
        rows["peer"], rows["partner"] = made.peer, made.partner
        rows["successor"] = self.structures[structure.key][0] + structure.succ_ptr[:-1]
        rows["successors"] = np.diff(structure.succ_ptr)
        rows["route"] = -1 if made.route is None else made.route
        many = np.flatnonzero(structure.need >= MOST_NEEDS)
        rows["count"][many] = np.arange(len(many))
        small[:] = np.minimum(structure.need, MOST_NEEDS)

    def _room(self) -> None:
        """Set the most memory that one step of the kernel can take."""
        words = max((row["words"] for row in self.templates.rows), default=1)
        nodes = max((row["nodes"] for row in self.templates.rows), default=1)
        starts = min(self.running, self.chunk_count) + 2 if self.chunk_count else 2
        blocks = starts * (words + self.words_of_calls + 64)
        shares = self.chunk_count * (records.RUN_WORDS + 8) + records.SHARE_WORDS + 2 * self.most_queues + 16
        # Arena sizes exceed the request by at most a quarter.
        joint = (starts if self.chunk_count else 1) * (5 * self.joint // 4 + 8)
        self.constants["arena_step"] = 2 * (blocks + shares) + 24 * nodes * (starts + 1) + joint + 1024
        self.constants["block_step"] = starts + 8


def _changes(values: np.ndarray) -> np.ndarray:
    """The first of every run of equal values: few, as successive messages often have one size."""
    return values[np.flatnonzero(np.diff(values, prepend=~values[:1]))] if len(values) else values
