"""What unfinished work waits for when the kernel has stopped, for the explanation of a stuck run."""

import numpy as np

from astrasim_py.engine.compiled import records
from astrasim_py.engine.compiled.unfinished import Unfinished, unreceived
from astrasim_py.engine.stuck import Posted, Waits
from astrasim_py.system.programs import RECV, SEND


def _split(entry: int) -> tuple[int, int]:
    """Block and node of ``block << 32 | node``."""
    return int(entry) >> 32, int(entry) & 0xFFFFFFFF


class Waiting(Unfinished):
    """What the unfinished work waits for; `state`: with nodes recorded if waiting times are needed."""

    def without_path(self) -> list[tuple[int, int]]:
        """Pairs of NPUs with a message that no path is left for."""
        pairs = self.plan.route_pairs[np.flatnonzero(self.tables["reroutes"]["cut"])] // self.plan.problem.network.qps
        return [divmod(pair, self.plan.problem.topology.vertices) for pair in np.unique(pairs).tolist()]

    def waits(self) -> Waits:
        """All that is waited for."""
        return Waits(
            posted=self.posted(),
            unreceived=self.unreceived(),
            held=self.held(),
            unasked=self.unasked(),
            uncounted=self.uncounted(),
            queued=self.queued(),
            without_path=self.without_path(),
        )

    def posted(self) -> list[Posted]:
        """Receives that wait for a message."""
        found = [self.waiting(block, node) for block, node in self.flagged(records.POSTED, RECV)]
        for match in self.matches:
            if match["flags"] & records.RECEIVE_POSTED and not match["flags"] & records.HAS_ARRIVED:
                found.append(self.waiting(*_split(match["receive"])))
        for index, heads in self.of_calls("steps", records.STEP_MESSAGE):
            found += [Posted.awaiting(self.plan, *step) for step in self.waiting_for(index, heads)]
        return sorted(found)

    def waiting_for(self, index: int, messages: np.ndarray) -> list[tuple[int, int, int, int]]:
        """Nodes of a call that wait for a slot or a head: rank, call, node, since when."""
        found = []
        for entry, since in messages[["state", "since"]][messages["state"] >= records.WAITED].tolist():
            block, node = _split(entry - records.WAITED)
            found.append((int(self.blocks["rank"][block]), index, node, since))
        return found

    def of_calls(self, count: str, dtype: np.dtype):
        """Calls under way and their messages; a field of the call holds their number."""
        progress = self.tables["progress"][: len(self.plan.calls)]
        for index in np.flatnonzero(progress["left"] > 0).tolist():
            call = self.tables["calls"][index]
            begin = int(progress["place"][index]) + int(call["slots"])
            begin += 2 * int(call["messages"]) * (dtype is records.STEP_MESSAGE)
            yield index, self.tables["arena"][begin : begin + dtype.itemsize // 8 * int(call[count])].view(dtype)

    def unreceived(self) -> list[Posted]:
        """Messages that have arrived and were never received."""
        found = []
        for number, node in self.flagged(records.ARRIVED, RECV):
            block = self.blocks[number]
            index = int(block["call"])
            peer = int(self.plan.program(int(block["rank"]), index).peer[node])
            sender = (
                peer + self.plan.first_rank[self.plan.job_of[block["rank"]]]
                if index < 0
                else self.plan.calls[index].members[peer]
            )
            partner = int(self.tables["nodes"]["partner"][int(block["first"]) + node])
            where = sender if index < 0 else peer
            row = int(self.plan.first_rows(index)[where]) + partner if self.state.scalars["record_nodes"] else -1
            found.append(Posted.of(self.plan, sender, index, partner, self.start(row)))
        for match in filter(unreceived, self.matches):
            _, node = _split(match["send"])
            since = self.start(int(match["sender_row"]))
            found.append(Posted.of(self.plan, int(match["rank"]), int(match["call"]), node, since))
        return sorted(found)

    def held(self) -> list[Posted]:
        """Sends that wait for a free slot of their connection."""
        calls = self.of_calls("messages", records.MESSAGE_SLOT)
        return sorted(Posted.of(self.plan, *send) for call in calls for send in self.waiting_for(*call))

    def unasked(self) -> list[Posted]:
        """Under the rendezvous: sends that no receiver has requested."""
        found = [self.waiting(block, node) for block, node in self.flagged(records.POSTED, SEND)]
        found += [self.waiting(*_split(m["send"])) for m in self.matches if m["flags"] & records.UNASKED]
        return sorted(found)

    def uncounted(self) -> list[tuple[Posted, int, int, int]]:
        """Nodes that wait only for a count, with their counter, its count, and the count they wait for."""
        arena, found = self.tables["arena"], []
        states, longs = arena.view(np.uint8), self.tables["longs"]
        for block in self.blocks[self.begun & (self.blocks["flags"] & records.COUNTS > 0)]:
            template = self.tables["templates"][block["template"]]
            words, first = int(block["words"]), int(block["first"])
            base, counts = words + int(template["counter_word"]), words + (int(template["nodes"]) + 7) // 8
            for number in range(int(template["counters"])):
                count, waiting = arena[base + 2 * number : base + 2 * number + 2].tolist()
                heap = base + int(longs[template["waiting"] + 4 * number])
                entries = arena[heap : heap + waiting * records.ENTRY.itemsize // 8].view(records.ENTRY)
                for wanted, _, node in entries.tolist():
                    needs = int(states[8 * words + node]) & int(records.NEEDS)
                    if needs == records.MOST_NEEDS:
                        needs = int(arena[counts + int(self.tables["nodes"]["count"][first + node])])
                    if needs == 1:
                        at = Posted.of(self.plan, int(block["rank"]), int(block["call"]), node, -1)
                        found.append((at, number, count, wanted))
        return sorted(found)

    def queued(self) -> list[tuple[int, int, int, tuple[int, ...]]]:
        """Chunks that wait for their turn: rank, call, queue, and the calls that run there."""
        found = []
        for number in np.flatnonzero(self.tables["ranks"]["queues"][: self.plan.ranks]).tolist():
            rank = self.tables["ranks"][number]
            places = self.blocks["run"][self.begun & (self.blocks["rank"] == number)]
            runs = [self.arena_row(int(place), records.RUN) for place in places[places > 0]]
            for which in range(int(rank["queues"])):
                queue = self.arena_row(int(rank["queue"]) + int(records.QUEUE_WORDS) * which, records.QUEUE)
                users = [run for run in runs if self.phase(run).queue == which]
                users.sort(key=lambda run: run["begun"])
                running = tuple(self.call_of(run, number) for run in users)
                # Report the held-back chunks with a collective that runs in this queue.
                early = []
                for share in dict.fromkeys(int(run["share"]) for run in users):
                    held = self.chain(self.arena_row(share, records.SHARE)["early"])
                    early += [run for run in reversed(held) if self.phase(run).queue == which]
                line = self.chain(queue["line"])
                found += [(number, self.call_of(run, number), which, running) for run in (*line, *early)]
        return found

    def arena_row(self, place: int, dtype: np.dtype) -> np.void:
        """The record at a place of the arena."""
        return self.tables["arena"][place : place + dtype.itemsize // 8].view(dtype)[0]

    def chain(self, first: int) -> list[np.void]:
        """Runs of a linked list."""
        runs = []
        while first:
            runs.append(self.arena_row(int(first), records.RUN))
            first = runs[-1]["next"]
        return runs

    def phase(self, run: np.void):
        """The phase that a run is in or waits for."""
        instance = self.plan.instances[int(self.arena_row(int(run["share"]), records.SHARE)["instance"])]
        return instance.chunks[int(run["chunk"])].phases[int(run["phase"])]

    def call_of(self, run: np.void, rank: int) -> int:
        """Index of a rank's call in the phase of a run."""
        phase = self.phase(run)
        return phase.first + phase.call_of[rank]

    def waiting(self, number: int, node: int) -> Posted:
        """A node of a live block that has waited since it was issued."""
        block = self.blocks[number]
        row = int(block["row"])
        return Posted.of(
            self.plan, int(block["rank"]), int(block["call"]), node, self.start(row + node if row >= 0 else -1)
        )

    def start(self, row: int) -> int:
        """Issue time of a row of the node table; -1 if nodes are not recorded."""
        return int(self.tables["node_rows"]["start"][row]) if row >= 0 else -1
