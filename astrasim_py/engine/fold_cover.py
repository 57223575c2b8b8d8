"""Rotations of copies: a long ring of copies is simulated as a short one.

All copies do the same. Where each group of a role takes one rank of every copy, in one order, and the ranks of its
algorithm differ by a rotation, nothing tells one copy from the next: the run of N copies in a ring and the run of m of
them, in which each rank sends to the copy as many places ahead and has as many steps, are both pictures of one run of
copies in an endless row. So a rank does the same at the same times in both, if m copies share links as N do, which is
checked, link by link.
"""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import Any

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.errors import FoldError
from astrasim_py.core.units import format_time, transfer_ps
from astrasim_py.engine.fold_copy import Copy
from astrasim_py.engine.fold_prices import Classes, Prices, Run
from astrasim_py.engine.fold_traffic import FoldedFlow
from astrasim_py.engine.recorder import LINK_TOTALS
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmTable
from astrasim_py.program.traces import Traces
from astrasim_py.system.problem import Job
from astrasim_py.system.symmetry import refuse

#: Most copies that are simulated in place of a ring.
_MOST_COPIES = 8


def covered(
    classes: Classes, prices: Prices, apart: frozenset[str], kept: frozenset[str], run: Run
) -> "CoveredCopy | None":
    """The copy of which few stand for all; None where they cannot be shown to do the same.

    `apart`: roles whose groups are in one copy. `kept`: these, and those whose groups join copies in a ring.
    """
    try:
        copy = CoveredCopy(classes, prices, apart, kept)
        copy.simulate(run)
    except FoldError:
        return None
    return copy


@dataclass(frozen=True)
class RingTable:
    """Algorithms of a job whose groups of some roles are simulated with fewer members.

    `members`: of such a group by its name, the NPUs of all; `copies`: how many are simulated; `short`: algorithms of
    whole groups by their identity (they stay alive here), and what few copies run of them.
    """

    table: AlgorithmTable
    members: Mapping[str, tuple[int, ...]]
    copies: int
    short: dict[int, tuple[Algorithm, Algorithm]] = field(default_factory=dict)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.table, name)

    def select(self, collective: str, size: int, ranks: int, group: str, root: int = 0, **others: Any) -> Algorithm:
        """The algorithm of the whole group for the ranks of a few copies; see `AlgorithmTable.select`."""
        npus = self.members.get(group)
        if npus is None:
            return self.table.select(collective, size, ranks, group, root, **others)
        whole = self.table.select(collective, size, len(npus), group, root, **(others | {"npus": npus}))
        if id(whole) not in self.short:
            self.short[id(whole)] = whole, short_ring(whole, self.copies)
        return self.short[id(whole)][1]


def distances(algorithm: Algorithm) -> tuple[int, ...]:
    """How many places ahead a rank sends; negative for behind.

    Raises FoldError: its ranks are no rotation of one digit.
    """
    rotation, n = algorithm.rotation, algorithm.ranks
    if rotation is None or tuple(size for size in rotation.dims if size > 1) != (n,) or algorithm.actors:
        raise refuse(f"the ranks of {algorithm.name} are no ring")
    first = algorithm.traces[0]
    ahead = np.unique(first.column("comm_dst")[first.type == NodeType.COMM_SEND])
    return tuple(sorted(int(d) if 2 * d <= n else int(d) - n for d in ahead.tolist()))


def short_ring(algorithm: Algorithm, copies: int) -> Algorithm:
    """The programs of the first ranks of an algorithm, with peers counted around a ring of as many `copies`."""
    n, traces = algorithm.ranks, []
    for rank in range(copies):
        trace = algorithm.traces[rank]
        columns = {}
        for name in ("comm_src", "comm_dst"):
            if not trace.has_column(name):
                continue
            peer = trace.column(name)
            ahead = (peer - rank + n // 2) % n - n // 2
            columns[name] = np.where(peer == MISSING, MISSING, (rank + ahead) % copies)
        traces.append(trace.without_raw().replace(**columns))
    return replace(algorithm, name=f"{algorithm.name} of {n}", ranks=copies, traces=Traces.of(traces), source="fold")


class CoveredCopy(Copy):
    """A copy whose groups of some roles join it to others in rings, of which a few are simulated."""

    def __init__(self, classes: Classes, prices: Prices, apart: frozenset[str], kept: frozenset[str]) -> None:
        network = classes.plan.problem.network
        if network.profile is not None or network.msccl is not None:
            raise refuse("costs of a library hang on the number of ranks")
        super().__init__(classes, prices, kept, apart)
        self.rings = kept - apart
        #: By family whose messages differ by a byte: its size, rounded up to one of equal messages.
        self.rounded: dict[int, int] = {}
        self.order = self._order(classes.copies(kept))
        self.around = self.order.shape[1]
        self.ahead = self._distances()
        self.copies = self._copies()
        self.simulated = self.ranks[self.order[0, : self.copies]].ravel()
        self.local = np.full(self.plan.ranks, -1, dtype=np.int64)
        self.local[self.simulated] = np.arange(len(self.simulated))

    def _order(self, joined: np.ndarray) -> np.ndarray:
        """int64[rings, copies]: copies that groups join, in the order of their members."""
        number = np.full(len(self.ranks), -1, dtype=np.int64)
        sets = np.sort(self.copy_of[joined], axis=1)[:, :: self.size]
        number[sets] = np.arange(len(sets))[:, None]
        order = np.full(sets.shape, -1, dtype=np.int64)
        for family in self.classes.every:
            if family.name not in self.rings:
                continue
            for value in family.values:
                members = np.array(self.plan.instances.values[value].members)
                copies, places = self.copy_of[members], self.place[members]
                ring = int(number[copies[0]])
                if len(copies) != sets.shape[1] or (places != places[0]).any():
                    raise refuse(f"groups of {family.name} do not take one rank of each copy")
                if order[ring, 0] < 0:
                    order[ring] = copies
                if not np.array_equal(order[ring], copies):
                    raise refuse(f"groups of {family.name} order copies differently")
        if (order < 0).any() or not np.array_equal(np.sort(order, axis=1), sets):
            raise refuse("groups leave out copies")
        return order

    def _distances(self) -> tuple[int, ...]:
        """How many copies ahead the groups send."""
        ahead: set[int] = set()
        for index, family in enumerate(self.classes.every):
            if family.name not in self.rings:
                continue
            for value in family.values[:1]:
                instance = self.plan.instances.values[value]
                if instance.only_call is None or instance.only_call.algorithm is None:
                    raise refuse(f"collectives of {family.name} are planned by dimension")
                algorithm = instance.only_call.algorithm
                if not algorithm.symbolic:
                    raise refuse(f"messages of {family.name} state bytes")
                if instance.size % algorithm.chunks:
                    self.rounded[index] = -(-instance.size // algorithm.chunks) * algorithm.chunks
                ahead |= set(distances(algorithm))
        return tuple(sorted(ahead))

    def _copies(self) -> int:
        """The least number of copies around which no distances are equal, or nothing."""
        for copies in range(2, min(self.around, _MOST_COPIES + 1)):
            places = {d % copies for d in self.ahead}
            if len(places) == len(self.ahead) and 0 not in places:
                return copies
        raise refuse("messages go too far around the ring")

    def _groups(self) -> dict[str, tuple[int, ...]]:
        """Groups among the simulated ranks; of rings those members that are."""
        groups: dict[str, tuple[int, ...]] = {}
        for name, members in self.classes.workload.groups.items():
            if not members or self.local[members[0]] < 0:
                continue
            local = self.local[list(members)]
            here = local[local >= 0]
            if len(here) == len(local) or name in self._ring_members:
                groups[name] = tuple(here.tolist())
        return groups

    @cached_property
    def _ring_members(self) -> dict[str, tuple[int, ...]]:
        """NPUs of all members of the groups of rings among the simulated ranks, by the name of the group."""
        found = {}
        for family in self.classes.every:
            for value in family.values if family.name in self.rings else ():
                instance = self.plan.instances.values[value]
                if self.local[instance.members[0]] >= 0:
                    found[instance.group] = tuple(self.plan.npu_of[rank] for rank in instance.members)
        return found

    def _trace(self, each: int, rank: int, times: dict[int, int]) -> ExecutionTrace:
        """A class's trace as a rank of the copy runs it, with sizes of equal messages."""
        trace = super()._trace(each, rank, times)
        families = self.classes.families[each]
        if not self.rounded or not np.isin(families, list(self.rounded)).any():
            return trace
        rows = self.classes.call_rows(each)
        size = trace.column("coll_size").copy()
        for index, rounded in self.rounded.items():
            size[rows[families == index]] = rounded
        return trace.replace(coll_size=size)

    def _job(self, job: Job) -> Job:
        table: Any = RingTable(job.algorithms, self._ring_members, self.copies)
        return replace(job, algorithms=table)

    def _run_times(self, rows: Sequence[int]) -> None:
        """Times of the first copy; the others must have the same."""
        super()._run_times(rows)
        node = self.run.node
        for copy in range(1, self.copies):
            for place, (start, end) in enumerate(self.times):
                row = rows[copy * self.size + place]
                same = np.array_equal(node["start"][row : row + len(start)], start)
                if not same or not np.array_equal(node["end"][row : row + len(end)], end):
                    raise refuse("copies that are alike do not do the same at the same times")

    def _routes(self) -> None:
        """Kinds of messages of a copy, and the links of each hop in all copies; raise unless few share links as all do.

        `kinds`: int64[k, 3]: place of the sender, place of the receiver, and how many copies ahead it is.
        """
        message, size = self.run.message, self.size
        src, dst = (message[name].astype(np.int64) for name in ("src", "dst"))
        own = src < size
        ahead = np.zeros(self.copies, dtype=np.int64)
        ahead[[d % self.copies for d in self.ahead]] = self.ahead
        kinds = np.stack([src[own], dst[own] % size, ahead[(dst[own] // size) % self.copies]], axis=1)
        self.kinds = np.unique(kinds, axis=0)
        everywhere, few = self._links(self.order, self.around), self._links(self.order[:1, : self.copies], self.copies)
        self.hop_links, self.few_links = everywhere, few
        _check_sharing(self.plan.problem.topology, everywhere, few)

    def _links(self, order: np.ndarray, around: int) -> list[np.ndarray]:
        """int64[rings, copies] for each hop of each kind: its link."""
        npus, topology = np.array(self.plan.npu_of, dtype=np.int64), self.plan.problem.topology
        hops = []
        for place, other, ahead in self.kinds.tolist():
            src = npus[self.ranks[order, place]]
            dst = npus[self.ranks[np.roll(order[:, :around], -ahead, axis=1), other]]
            ptr, links = topology.routes(src.ravel(), dst.ravel())
            lengths = np.diff(ptr)
            if (lengths != lengths[0]).any():
                raise refuse("routes of copies differ in length")
            table = links.reshape(*order.shape, int(lengths[0])).astype(np.int64)
            hops += [table[..., hop] for hop in range(int(lengths[0]))]
        return hops

    def _kept_flows(self) -> list[FoldedFlow]:
        """None: folded collectives must not share links with messages."""
        used = np.unique(np.concatenate([links.ravel() for links in self.hop_links]))
        for index in sorted(
            {int(i) for each, calls in enumerate(self.folded) for i in self.classes.families[each][calls]}
        ):
            if np.intersect1d(self._busy(index)[0], used).size:
                raise refuse(f"collectives of {self.classes.every[index].name} share links with messages")
        return []

    def _crowded(self, kept: list[FoldedFlow]) -> tuple[int, int] | None:
        return None

    def deviation(self, run: Run) -> tuple[int, str]:
        """As of a copy, and what messages that ask for a link in an order that is not known may take."""
        found, why = super().deviation(run)
        message, late = self.run.message, 0
        if self.rounded:  # a byte more or less in each message, one after the other
            slowest = min(self.plan.problem.topology.bandwidths)
            late = 2 * int((message["src"] < self.size).sum()) * transfer_ps(1, slowest)
            why = "; ".join(filter(None, (why, "messages of alike ranks differ by a byte")))
        pairs, delay = self._unordered(late)
        if pairs:
            when = "at one time" if not late else f"within {format_time(late)}"
            text = f"the order of messages that ask for a link {when} is not known, {pairs} times"
            why = "; ".join(filter(None, (why, text)))
        return found + late + delay, why

    def _unordered(self, late: int) -> tuple[int, int]:
        """How often messages that follow each other on a link could go in the other order if each may be `late`, ps,
        and what those of the first copy take."""
        hop, message = self.run.hop, self.run.message
        of, link, requested = hop["message"], hop["link"], hop["requested"].astype(np.int64)
        src, instance = message["src"][of], message["instance"][of]
        order = np.lexsort((src, requested, link))
        one, other = order[:-1], order[1:]
        unlike = src[one] != src[other]
        if late:  # and those of a rank, by different calls
            unlike |= instance[one] != instance[other]
        pairs = unlike & (link[one] == link[other]) & (requested[other] - requested[one] <= late)
        took = (hop["end"] - hop["start"]).astype(np.int64)
        first = pairs & (src[one] < self.size)
        return int(pairs.sum()), int((took[one] + took[other])[first].sum())

    def _totals(self) -> tuple[dict[str, np.ndarray], int, int]:
        """Totals of links, and numbers of messages and hops, of all ranks."""
        topology, ran = self.plan.problem.topology, self.run
        sums = np.zeros((len(LINK_TOTALS) - 1, len(topology.src)), dtype=np.int64)
        used = np.zeros(len(topology.src), dtype=bool)
        row = np.full(len(topology.src), -1, dtype=np.int64)
        row[ran.link["link"]] = np.arange(len(ran.link["link"]))
        totals = np.stack([ran.link[name] for name in LINK_TOTALS[1:]])
        for everywhere, few in zip(self.hop_links, self.few_links, strict=True):
            links = everywhere.ravel()
            sums[:, links] = totals[:, [int(row[few[0, 0]])]]
            used[links] = True
        queue = LINK_TOTALS.index("max_queue") - 1
        messages, hops = (n // self.copies * len(self.ranks) for n in (ran.messages, ran.message_hops))
        for index, count in self.counts.items():
            price = self.prices[index]
            most = np.maximum(sums[queue, price.links], price.totals[queue])
            sums[:, price.links] += price.totals * count
            sums[queue, price.links] = most
            used[price.links] = True
            messages, hops = messages + count * price.messages, hops + count * price.hops
        chosen = np.flatnonzero(used)
        return {"link": chosen, **dict(zip(LINK_TOTALS[1:], sums[:, chosen], strict=True))}, messages, hops


def _check_sharing(topology, everywhere: list[np.ndarray], few: list[np.ndarray]) -> None:
    """Raise FoldError unless hops share links in few copies as they do in all, and links of a hop are alike.

    `everywhere`: int64[rings, copies] for each hop; `few`: the same of one short ring.
    """
    kinds = np.stack([topology.bandwidth_class.astype(np.int64), topology.latency_ps])
    for many, some in zip(everywhere, few, strict=True):
        alike = np.concatenate([many.ravel(), some.ravel()])
        if (kinds[:, alike] != kinds[:, alike[:1]]).any():
            raise refuse("links of a hop differ between copies")
    users, counts = np.unique(np.concatenate([links.ravel() for links in everywhere]), return_counts=True)
    count_of = np.zeros(len(topology.src), dtype=np.int64)
    count_of[users] = counts
    few_users, few_counts = np.unique(np.concatenate([links.ravel() for links in few]), return_counts=True)
    few_of = np.zeros(len(topology.src), dtype=np.int64)
    few_of[few_users] = few_counts
    first: dict[int, list[tuple[int, int]]] = {}
    around = everywhere[0].shape[1]
    for number, links in enumerate(everywhere):
        for copy, link in enumerate(links[0].tolist()):
            first.setdefault(link, []).append((number, copy))
    copies = few[0].shape[1]
    for links, short in zip(everywhere, few, strict=True):
        sharing = first[int(links[0, 0])]
        if (count_of[links] != len(sharing)).any() or (few_of[short] != len(sharing)).any():
            raise refuse("copies share links, and not each with its next ones alone")
        for other, copy in sharing:
            ahead = copy if 2 * copy <= around else copy - around
            if (np.roll(everywhere[other], -ahead, axis=1) != links).any():
                raise refuse("hops share links otherwise in other copies")
            if (np.roll(few[other], -(ahead % copies), axis=1) != short).any():
                raise refuse("hops share links otherwise in few copies")
