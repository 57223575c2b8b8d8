"""Does a program end, with so many slots per connection?

A program is a graph: a step follows those it depends on, the k-th receive of a connection follows its k-th send, and,
where a connection holds S messages, the (k+S)-th send follows the k-th receive. Every rank is sequential or ordered by
dependencies, without choices, so one order decides (a Kahn network with bounded queues): it ends if and only if the
graph has no cycle. A fused step is one node of the graph, so it holds its incoming slot until its outgoing one is
free. Slots count messages: a step of several chunks is one message for small buffers and up to one per chunk for large
ones.
"""

from bisect import bisect_left
from dataclasses import dataclass
from itertools import accumulate, pairwise
from typing import NamedTuple

from astrasim_py.program.steps import NEVER, Steps

#: Steps of a blocked cycle that a message lists.
MAX_TOLD = 24


@dataclass(frozen=True, slots=True)
class Blocked:
    """Why a program does not go on."""

    chain: tuple[str, ...]  # each line says what waits for what; the last waits for the first
    crossing: tuple[str, ...]  # those lines in which one rank waits for another
    cycle: bool  # true if the chain is closed; otherwise its end can never happen


class Order(NamedTuple):
    """Senders, and an order of execution, as of a `Flow`, of a part of a program."""

    sender: list[int]
    sequence: list[int]


class Flow:
    """The graph of a program.

    `sender`: for a step that receives: the step that sends what it takes; -1 otherwise. `sequence`: steps in an order
    in which they can run with unbounded slots; what is missing never runs.
    """

    def __init__(self, steps: Steps) -> None:
        self.steps = steps
        self.sender = [-1] * len(steps)
        for connection in steps.connections:
            for s, r in zip(connection.sends, connection.receives, strict=False):
                self.sender[r] = s
        self.sequence: list[int] = []
        self.sequence = _MessageGraph(self, len(steps), None).sequence

    @property
    def ends(self) -> bool:
        """True if it ends with unbounded slots."""
        return len(self.sequence) == len(self.steps)

    def split(self, chunks_per_message: int) -> list[int] | None:
        """Messages of each step that moves at most so many chunks at once; None where each is one."""
        if chunks_per_message < 1 or max(self.steps.count, default=0) <= chunks_per_message:
            return None
        moving = zip(self.steps.count, self.steps.takes, self.steps.gives, strict=True)
        parts = [-(-c // chunks_per_message) if c > 1 and (t >= 0 or s >= 0) else 1 for c, t, s in moving]
        return parts if max(parts) > 1 else None

    def run(self, slots: int, parts: list[int] | None = None) -> Blocked | None:
        """None if the program ends when every connection holds `slots` messages, else why it does not."""
        run = _MessageGraph(self, slots, parts)
        return None if run.ends else run.blocked()

    def smallest(self, parts: list[int] | None = None) -> int | None:
        """Fewest slots with which it ends; None if none suffice."""
        if not self.ends:
            return None
        longest = (sum(parts[g] for g in c.sends) if parts else len(c.sends) for c in self.steps.connections)
        most = max(longest, default=1)

        def enough(slots: int) -> bool:
            return _MessageGraph(self, slots, parts).ends

        few = range(1, min(most, 8) + 1)
        # Beyond a few, by bisection: more slots never block a program that fewer let end, and `most` are as good as
        # unbounded.
        return next(filter(enough, few), None) or 9 + bisect_left(range(9, most), True, key=enough)


class _MessageGraph:
    """The graph of messages for a number of slots; a step that sends or receives none counts as one message.

    `sequence`: messages in an order in which they can run; what is missing never runs.
    """

    def __init__(self, flow: Flow, slots: int, parts: list[int] | None) -> None:
        self.flow, self.slots, self.single = flow, slots, parts is None
        parts = parts or [1] * len(flow.steps)
        #: First message of every step, and the number of all messages.
        self.base = base = [0, *accumulate(parts)]
        self.step_of = [g for g, count in enumerate(parts) for _ in range(count)]

        def messages(rows: list[int]) -> list[int]:
            return rows if self.single else [u for g in rows for u in range(base[g], base[g + 1])]

        self.queues = [(messages(c.sends), messages(c.receives)) for c in flow.steps.connections]
        #: For sends that get the slot of a message: the receive of that message.
        self.frees_from: dict[int, int] = {}
        #: Sends that never get a slot, as the messages before them are never received.
        self.full: set[int] = set()
        for sends, receives in self.queues:
            self.frees_from.update(zip(sends[slots:], receives, strict=False))
            self.full.update(sends[slots + len(receives) :])
        self.sequence = self._order()

    @property
    def ends(self) -> bool:
        return len(self.sequence) == self.base[-1]

    def _order(self) -> list[int]:
        if self.single and self.flow.ends and not self.full:
            position = [0] * len(self.flow.sequence)
            for place, g in enumerate(self.flow.sequence):
                position[g] = place
            # The order for unbounded slots also holds for these slots if every slot is free in time.
            if all(position[r] < position[s] for s, r in self.frees_from.items()):
                return self.flow.sequence
        children, self.need = self._graph()
        need = self.need
        ready = [u for u, n in enumerate(need) if not n]
        # The list grows while it is walked: first come, first served.
        for u in ready:
            for c in children[u]:
                need[c] -= 1
                if not need[c]:
                    ready.append(c)
        return ready

    def _graph(self) -> tuple[list[list[int]], list[int]]:
        """The messages that wait for each, and how many each waits for."""
        flow, base = self.flow, self.base
        children: list[list[int]] = [[] for _ in range(base[-1])]
        need = [0] * base[-1]
        for u, (g, after) in enumerate(() if self.single else pairwise(self.step_of)):
            if g == after:
                children[u].append(u + 1)
                need[u + 1] = 1
        for g, waits in enumerate(flow.steps.parents):
            # A receive without a send waits for ever.
            need[base[g]] += len(waits) + (flow.steps.takes[g] >= 0 and flow.sender[g] < 0)
            for p in waits:
                if p != NEVER:
                    children[base[p + 1] - 1].append(base[g])
        freed = zip(self.frees_from.values(), self.frees_from, strict=True)
        for pairs in (*(zip(sends, receives, strict=False) for sends, receives in self.queues), freed):
            for before, after in pairs:
                children[before].append(after)
                need[after] += 1
        for s in self.full:
            need[s] += 1
        return children, need

    # -- why not ----------------------------------------------------------------------------------------------

    def blocked(self) -> Blocked:
        """Follow a blocked step to what it waits for, until a step comes again or something never happens."""
        steps, step_of = self.flow.steps, self.step_of
        self.stuck = {u for u, n in enumerate(self.need) if n > 0}
        self.sends_of = {r: s for sends, receives in self.queues for s, r in zip(sends, receives, strict=False)}
        u = min(self.stuck)
        seen: dict[int, int] = {}
        chain: list[tuple[str, bool]] = []
        while u >= 0 and u not in seen:
            seen[u], g = len(chain), step_of[u]
            u, why = self._waits_for(u)
            chain.append((f"{steps.label(g)} {why}", u < 0 or steps.rank[step_of[u]] != steps.rank[g]))
        closed = u >= 0
        if closed:
            chain = chain[seen[u] :]
        lines = [text for text, _ in chain]
        crossing = tuple(text for text, crosses in chain if crosses)
        if len(lines) > MAX_TOLD:
            lines = [*lines[: MAX_TOLD // 2], f"… {len(lines) - MAX_TOLD} more …", *lines[-MAX_TOLD // 2 :]]
        return Blocked(tuple(lines), crossing, closed)

    def _waits_for(self, u: int) -> tuple[int, str]:
        """The message that a blocked one waits for, -1 for what never happens; and how it waits, in words."""
        steps, base, stuck, g = self.flow.steps, self.base, self.stuck, self.step_of[u]
        if self.frees_from.get(u) in stuck:
            after, connection = self.frees_from[u], steps.connections[steps.gives[g]]
            queue = "" if connection.channel < 0 else f" on channel {connection.channel}"
            many = f"{self.slots} message{'s are' if self.slots > 1 else ' is'} under way"
            until = f"until {steps.place(self.step_of[after])} receives"
            return after, f"cannot send to {steps.position_name(connection.target)}{queue}: {many} {until}"
        if u in self.full:
            target = steps.connections[steps.gives[g]].target
            return -1, f"cannot send to {steps.position_name(target)}, which does not receive all messages before it"
        if u != base[g]:
            return u - 1, "has not sent or received its messages before this one"
        if steps.takes[g] >= 0 and self.flow.sender[g] < 0:
            source = steps.connections[steps.takes[g]].source
            return -1, f"waits for a message from {steps.position_name(source)} that is never sent"
        if NEVER in steps.parents[g]:
            return -1, "waits for a step that never signals its end"
        sender = self.sends_of.get(u)
        if sender in stuck:
            return sender, f"waits for the message of {steps.place(self.step_of[sender])}"
        p = next(p for p in steps.parents[g] if base[p + 1] - 1 in stuck)
        same = steps.chain[p] == steps.chain[g] and steps.chain[g] >= 0
        return base[p + 1] - 1, f"{'comes after' if same else 'waits for'} {steps.place(p)}"
