"""ASTRA-sim's own collective algorithms with the charges that its analytical backends make for them, as traces.

They are made for one size, in whole bytes, with ASTRA-sim's truncations: their bytes may differ from those of the
collective. For algorithms that move the right bytes see `astrasim_py.builders`.

A rank sends and receives in *packets*. A packet passes the NPU's memory before the rank goes on: that takes the
endpoint delay, and the time of the reduction if the packet is to be reduced. Which packets are, follows from their
order of arrival alone. A rank is done when its last packet has passed; it does not wait for the delivery of its sends.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Any

import numpy as np

from astrasim_py.builders.draft import NONE, Draft, check_nodes, previous
from astrasim_py.chakra.schema import MISSING
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.core.rows import numbered
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.rotation import Rotated, Rotation
from astrasim_py.program.traces import Traces

#: Counters of a rank: packets received, and packets that have passed the memory.
RECEIVED, PASSED = 0, 1

#: Endpoint delay of groups smaller than the world, whatever the configuration says, ns.
LOCAL_DELAY_NS = 10

RING, DIRECT, HALVING_DOUBLING, TREE = "ring", "direct", "halvingDoubling", "doubleBinaryTree"
MAX, MIN = "max", "min"

#: Bytes and picoseconds are smaller.
_MOST = 2**62

_WORD = re.compile(r"(one)?(ring|Ring|direct|Direct|halvingDoubling|HalvingDoubling|doubleBinaryTree)(-?\d+)?")


@dataclass(frozen=True, slots=True)
class Implementation:
    """A word of ASTRA-sim's ``*-implementation`` lists.

    `whole`: one of ``oneRing``, ``oneDirect``, ``oneHalvingDoubling``: over all NPUs at once, whatever the dimensions.
    """

    kind: str  # ``ring``, ``direct``, ``halvingDoubling`` or ``doubleBinaryTree``
    window: int | None = None  # of ``directK``: messages that a rank starts with; None is one to every peer
    whole: bool = False

    @classmethod
    def parse(cls, word: str, place: str = "") -> Implementation:
        """Read ``ring``, ``direct4``, ``oneRing`` …; raises AlgorithmError: not one of ASTRA-sim's words."""
        match = _WORD.fullmatch(word)
        remedy = "write ring, direct, direct<window>, halvingDoubling, doubleBinaryTree, oneRing, oneDirect or …"
        if match is None or (match[1] is None) != match[2][0].islower():
            raise AlgorithmError(place, f'"{word}" is not a collective implementation', remedy)
        kind = match[2][0].lower() + match[2][1:]
        if match[3] is not None and kind != DIRECT:
            raise AlgorithmError(place, f'"{word}" has a window, and only direct takes one', remedy)
        window = None if match[3] in (None, "-1") else int(match[3][:5])
        if window is not None and window < 1:
            problem = f'"{word}" starts with no message and never ends'
            raise AlgorithmError(place, problem, "write a window of 1 or more")
        return cls(kind, window, match[1] is not None)


@dataclass(frozen=True, slots=True, kw_only=True)
class SharedBus:
    """ASTRA-sim's ``model-shared-bus``: LogGP charges in place of the endpoint delay (Alexandrov et al., SPAA 1995).

    `latency`, `overhead`: ``L`` and ``o``, ns.
    """

    latency: float = 0.0
    overhead: float = 0.0
    per_byte: float = 0.0  # ``G``, ns per byte; the memory behind the bus takes 0.0038
    reduction: int = 1  # ``local-reduction-delay``: ns per 100 bytes, and 50 ns

    def crossing(self, size: int, per_byte: float) -> int:
        """ns that a packet of `size` bytes takes."""
        return math.floor(self.latency + 2 * self.overhead + per_byte * (size - 1))


@dataclass(frozen=True, slots=True, kw_only=True)
class Charges:
    """The cost of a packet at a rank.

    `memory_bandwidth`: ``local-mem-bw``, 10^9 bytes per second; 0 where it is absent, and reductions then cost nothing.
    """

    endpoint_ns: int = 10  # endpoint delay
    memory_bandwidth: float = 0.0
    bus: SharedBus | None = None

    def reduction_ns(self, size: int) -> int:
        """Two reads and a write of `size` bytes, each a whole number of ns."""
        return 3 * math.floor(size / self.memory_bandwidth) if self.memory_bandwidth else 0

    def packet_ns(self, size: int, *, flagged: bool = False, reduced: bool = False, last: bool = False) -> int:
        """Time (ns) that a packet of `size` bytes takes to pass.

        `flagged`: it is one of those that arrived, by ASTRA-sim's counting. `last`: it is among the last of these in
        its cycle: what arrived is not sent back over the bus.
        """
        time = self.reduction_ns(size) if reduced else 0
        if self.bus is None:
            return time + self.endpoint_ns
        over, memory = self.bus.crossing(size, self.bus.per_byte), self.bus.crossing(size, 0.0038)
        if reduced:
            time += size // 100 * self.bus.reduction + 50 + 2 * memory
        return time + (over + memory) * (2 if flagged and not last else 1)

    def by_order(self, collective: str, plain: int, flagged: int) -> Callable[[int, int], int]:
        """Time (ns) of the p-th packet (from 0, those it starts with included) by p and its size, as ASTRA-sim has it.

        Packets go in cycles of `plain` ones and `flagged` ones. A reduce_scatter reduces all flagged packets, an
        all_reduce those of every other cycle, from the first.
        """

        def packet_ns(p: int, size: int) -> int:
            cycle, turn = divmod(p, plain + flagged)
            if turn < plain:
                return self.packet_ns(size)
            reduced = collective == "reduce_scatter" or (collective == "all_reduce" and cycle % 2 == 0)
            return self.packet_ns(size, flagged=True, reduced=reduced, last=turn >= flagged)

        return packet_ns


def _in_steps(
    rotation: Rotation, to: object, source: object, sizes: Sequence[int], packet_ns: Callable[[int, int], int]
) -> Traces:
    """A message to and from a peer in each step, once the packet of the step before has passed; `sizes`: of packets."""
    step, draft = np.arange(len(sizes) - 1), Draft(1, 0)
    duration = np.array([1000 * packet_ns(p, size) for p, size in enumerate(sizes)])
    message: dict[str, Any] = {"tag": step, "comm_size": sizes[:-1]}
    first = draft.join(duration_ps=duration[:1], order=0)
    sent = draft.send(peer=to, detached=1, order=3 * step + 1, **message)
    arrived = draft.recv(peer=source, order=3 * step + 2, **message)
    passed = draft.join(duration_ps=duration[1:], after=(arrived,), order=3 * step + 3)
    for waiting in (sent, arrived):
        draft.depend(waiting, previous(passed, first))
    return Traces.of_rotation(Rotated(rotation, draft.program().traces()[0]))


def _ring(collective: str, size: int, n: int, direction: int, charges: Charges) -> Traces:
    steps = {"all_reduce": 2 * (n - 1), "all_to_all": n * (n - 1) // 2}.get(collective, n - 1)
    check_nodes(f"ring {collective} over {n} ranks", 3 * steps, of_rank=True)
    message = size if collective == "all_gather" else size // n
    peers = direction % n, -direction % n
    return _in_steps(Rotation((n,)), *peers, [message] * (steps + 1), charges.by_order(collective, 1, n - 1))


def _direct(
    collective: str, size: int, n: int, direction: int, charges: Charges, window: int | None, local: bool
) -> Traces:
    window = n - 1 if window is None else min(window, n - 1)
    halves = 2 if collective == "all_reduce" else 1
    message = size if collective == "all_gather" else size // n
    check_nodes(f"direct {collective} over {n} ranks", 3 * halves * (n - 1), of_rank=True)
    packet_ns = charges.by_order(collective, window, window * (n - 1) if local else window)
    draft, pair = Draft(1, 0), np.arange(halves * (n - 1))
    half, peer = np.divmod(pair, n - 1)
    late, count = pair >= window, pair - window + 1

    def after_packet(k: Any, place: Any) -> Any:
        """The order of nodes that follow the k-th packet."""
        return k * (2 * len(pair) + 3) + place

    opens: int | np.ndarray = NONE  # packets that have passed count towards the second half of an all_reduce from here
    first = draft.join(duration_ps=1000 * packet_ns(0, message), order=-1)
    if halves == 2:
        # The second half begins with the first packet to pass after the first half has arrived.
        draft.join(duration_ps=0, count_of=RECEIVED, count_k=n - 1, order=after_packet(n - 1, 1))
        begins = {"count_of": PASSED, "count_k": 1, "count_from": 3 * (n - 1) + 1, "order": after_packet(n - 1, 2)}
        opens = draft.join(duration_ps=0, **begins)
    turn = np.where(half > 0, n - 1, np.where(late, count, 0))
    after = np.where(late, NONE, first), np.where(half > 0, opens, NONE)
    waits = {"count_of": np.where(late, PASSED, MISSING), "count_k": np.where(late, count, MISSING), "after": after}
    shared: dict[str, Any] = {"tag": half, "comm_size": message, **waits}
    draft.send(peer=direction * (peer + 1) % n, detached=1, order=after_packet(turn, 3 + 2 * pair), **shared)
    draft.recv(peer=-direction * (peer + 1) % n, counter=RECEIVED, order=after_packet(turn, 4 + 2 * pair), **shared)
    duration = [1000 * packet_ns(window + p, message) for p in pair.tolist()]
    columns = {"duration_ps": np.array(duration), "count_k": pair + 1, "order": after_packet(pair + 1, 0)}
    draft.join(counter=PASSED, count_of=RECEIVED, **columns)
    return Traces.of_rotation(Rotated(Rotation((n,)), draft.program().traces()[0]))


def _halving_doubling(collective: str, size: int, n: int, charges: Charges) -> Traces:
    levels = n.bit_length() - 1
    gathering = collective == "all_gather"
    distance, message = (n // 2, size) if gathering else (1, size // 2)
    # A reduction is charged for the message that is sent next.
    distances, sizes = [], [message]
    for _ in range(levels * (2 if collective == "all_reduce" else 1)):
        distances.append(distance)
        if gathering:
            distance, message = distance // 2, message * 2
        else:
            distance, message = distance * 2, message // 2
            if distance == n and collective == "all_reduce":
                # Truncated once more before it doubles again: an odd last message comes back a byte smaller.
                gathering, distance, message = True, n // 2, message * 2
        sizes.append(message)
    packet_ns = charges.by_order(collective, 1, levels - 1)
    return _in_steps(Rotation((2,) * levels), distances, distances, sizes, packet_ns)


def _tree_parents(n: int, tree: str) -> list[int]:
    """Parent of each member, -1 at the root: a perfect in-order tree below a root at one end."""
    parents = [-1] * n
    first, root = (0, n - 1) if tree == MAX else (1, 0)
    spans = [(first, first + n - 2, root)]
    while spans:
        low, high, parent = spans.pop()
        middle = (low + high) // 2
        parents[middle] = parent
        if low < high:
            spans += [(low, middle - 1, middle), (middle + 1, high, middle)]
    return parents


def _double_binary_tree(size: int, n: int, tree: str, charges: Charges) -> Traces:
    parent = np.array(_tree_parents(n, tree))
    below = np.flatnonzero(parent >= 0)
    above, draft = parent[below], Draft(n, 0)
    leaves, child = np.setdiff1d(np.arange(n), above), numbered(above, below)
    plain, reduced = (1000 * charges.packet_ns(size, reduced=reduces) for reduces in (False, True))
    begin, passed, up_of = np.full((3, n), NONE)
    begin[leaves] = draft.join(leaves, duration_ps=plain, order=0)
    receives = draft.recv(rank=above, peer=below, tag=0, comm_size=size, order=1 + child)
    reductions = draft.join(above, duration_ps=reduced, after=(receives,), order=3 + child)
    sides: dict[str, Any] = {"rank": below, "peer": above, "comm_size": size, "after": (begin[below],)}
    up = draft.send(tag=0, detached=1, order=5, **sides)
    down = draft.recv(tag=1, order=6, **sides)
    duration = np.where(begin[below] == NONE, reduced, plain)
    passed[below] = draft.join(below, duration_ps=duration, after=(down,), order=7)
    back: dict[str, Any] = {"rank": above, "peer": below, "comm_size": size, "after": (passed[above],)}
    give = draft.send(tag=1, detached=1, order=8 + child, **back)
    # The root has one child, which it answers; others pass on what all their children gave.
    up_of[below] = np.arange(len(below))
    inner = parent[above] >= 0
    for waiting in (up, down):
        draft.depend(waiting[up_of[above[inner]]], reductions[inner])
    draft.depend(give[~inner], reductions[~inner])
    return Traces(n, draft=draft.program)


@lru_cache(maxsize=128)
def native_algorithm(
    kind: str,
    collective: str,
    size: int,
    n: int,
    charges: Charges,
    *,
    direction: int = 1,
    window: int | None = None,
    local: bool = False,
    tree: str = MAX,
) -> Algorithm:
    """One of ASTRA-sim's algorithms for a chunk of one size; equal requests return the same object.

    `size`: bytes with which a rank enters: its shard of an all_gather, else its full buffer. `direction`: of ring and
    direct: 1 to the next rank, -1 the other way round. `window`: of direct: messages that a rank starts with; one to
    every peer unless given. `local`: the group is smaller than the world: direct then counts its packets in longer
    cycles. `tree`: ``max`` or ``min``: the end that is the root. A doubleBinaryTree runs an all_reduce whatever the
    collective. Raises AlgorithmError: what ASTRA-sim cannot run either, or what would move empty messages.
    """
    place = f"{kind} {collective} over {n} ranks"
    if kind in (HALVING_DOUBLING, TREE) and n & (n - 1):
        problem = f"{kind} needs a power of two, and {n} is none (ASTRA-sim hangs or crashes)"
        raise AlgorithmError(place, problem, "use ring or direct in this dimension")
    if kind == HALVING_DOUBLING and collective == "all_to_all":
        raise AlgorithmError(place, "halvingDoubling has no all_to_all (ASTRA-sim exits)", "use ring or direct")
    if charges.bus is not None and kind != RING:
        raise AlgorithmError(place, "model-shared-bus is supported with ring only", "drop model-shared-bus")
    least = 1 if kind == TREE or collective == "all_gather" else n
    if kind == HALVING_DOUBLING and collective == "all_reduce":
        least = 2 * n  # the last message of the first half is halved once more before it doubles again
    if size < least:
        problem = f"{size} B leave its messages empty (ASTRA-sim aborts on messages of 0 B)"
        raise AlgorithmError(place, problem, "use a larger collective or fewer splits")
    largest = size * n if collective == "all_gather" else size
    try:
        fits = largest < _MOST and charges.packet_ns(largest, flagged=True, reduced=True) < _MOST // 1000
    except OverflowError:
        fits = False
    if not fits:
        problem = "its messages, or what a message costs its receiver, go beyond 2^62 (bytes, ps)"
        remedy = "use a smaller collective, a smaller endpoint-delay or a larger local-mem-bw"
        raise AlgorithmError(place, problem, remedy)
    if kind == RING:
        traces = _ring(collective, size, n, direction, charges)
    elif kind == DIRECT:
        traces = _direct(collective, size, n, direction, charges, window, local)
    elif kind == HALVING_DOUBLING:
        traces = _halving_doubling(collective, size, n, charges)
    else:
        traces = _double_binary_tree(size, n, tree, charges)
    return Algorithm(
        name=kind, collective=collective, ranks=n, traces=traces, in_place=collective != "all_to_all", source="builder"
    )


def size_after(kind: str, collective: str, size: int, n: int) -> int:
    """Bytes with which a rank enters the next dimension; ASTRA-sim divides without a remainder."""
    if kind == TREE or collective in ("all_reduce", "all_to_all"):
        return size
    return size * n if collective == "all_gather" else size // n
