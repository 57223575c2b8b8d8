"""What had not finished when the kernel stopped, for the explanation of a stuck run."""

from __future__ import annotations

import numpy as np

from astrasim_py.engine.compiled import layout as at
from astrasim_py.engine.compiled.run import State
from astrasim_py.engine.stuck import Posted
from astrasim_py.system.plan import RECV, SEND, Plan

_LOW = 0xFFFFFFFF


class Waiting:
    """Reads the final arrays of a run.

    Parameters
    ----------
    plan : Plan
    state : State
        With nodes recorded where it is to tell since when something waits.
    """

    def __init__(self, plan: Plan, state: State) -> None:
        self.plan, self.state = plan, state
        self.blocks = state.blocks[: state.globals[at.G_BLOCK_TOP]]
        #: Blocks that are not given back: those of detached sends may have ended before these go.
        self.kept = self.blocks[:, at.B_RANK] >= 0
        self.live = self.kept & (self.blocks[:, at.B_LEFT] > 0)
        pairs = state.pairs[: state.globals[at.G_PAIR_TOP]]
        self.pairs = pairs[pairs[:, at.P_FLAGS] >= 0]

    def progress(self) -> list[int]:
        """Unfinished nodes by rank."""
        begun = self.blocks[self.live & (self.blocks[:, at.B_SPLICED] > 0)]
        left = np.zeros(self.plan.ranks, dtype=np.int64)
        np.add.at(left, begun[:, at.B_RANK], begun[:, at.B_LEFT])
        return left.tolist()

    def anything_unreceived(self) -> bool:
        """Whether a message has arrived that nobody has received."""
        flags = self.pairs[:, at.P_FLAGS]
        if ((flags & at.HAS_ARRIVED > 0) & (flags & at.RECEIVE_POSTED == 0)).any():
            return True
        return any(True for _ in self.flagged(at.ARRIVED, RECV))

    def flagged(self, flag: int, kind: int):
        """Blocks and nodes of a kind whose state has a flag."""
        states = self.state.arena.view(np.uint8)
        nodes = self.state.image.node
        # Of what has no such node nothing is looked at.
        of_kind = np.append(0, np.cumsum(nodes[:, at.N_KIND] & 7 == kind))
        count_of = self.state.image.tmpl[self.blocks[:, at.B_TEMPLATE] * self.kept, at.T_COUNT]
        firsts = self.blocks[:, at.B_FIRST] * self.kept
        found = np.flatnonzero(self.kept & (of_kind[firsts + count_of] > of_kind[firsts]))
        columns = [at.B_WORDS, at.B_OFFSET, at.B_STEP, at.B_FLAGS, at.B_LEFT]
        rows = self.blocks[found][:, columns].tolist()
        for block, row, first, count in zip(
            found.tolist(), rows, firsts[found].tolist(), count_of[found].tolist(), strict=True
        ):
            words, offset, step, flags, left = row
            if flags & at.JOINT_BLOCK and not left:
                # Its states went with the slice, and had no flag left.
                continue
            begin = 8 * words + offset
            for node in np.flatnonzero(states[begin : begin + step * count : step] & flag).tolist():
                if nodes[first + node, at.N_KIND] & 7 == kind:
                    yield block, node

    def posted(self) -> list[Posted]:
        """Receives that wait for a message."""
        found = [self.entry(block, node) for block, node in self.flagged(at.POSTED, RECV)]
        for pair in self.pairs.tolist():
            if pair[at.P_FLAGS] & at.RECEIVE_POSTED and not pair[at.P_FLAGS] & at.HAS_ARRIVED:
                found.append(self.entry(pair[at.P_RECEIVE] >> 32, pair[at.P_RECEIVE] & _LOW))
        return sorted(found)

    def unreceived(self) -> list[Posted]:
        """Messages that have arrived and were never received."""
        found = []
        for block, node in self.flagged(at.ARRIVED, RECV):
            index = int(self.blocks[block, at.B_SLICE])
            rank = int(self.blocks[block, at.B_RANK])
            program = self.plan.program(rank, index)
            peer = int(program.peer[node])
            sender = self.ranks(block)[peer]
            meet = int(self.state.image.node[int(self.blocks[block, at.B_FIRST]) + node, at.N_MEET])
            where = sender if index < 0 else peer
            row = int(self.plan.first_rows(index)[where]) + meet if len(self.state.nodes) else -1
            found.append(self.told(sender, index, meet, self.start(row)))
        for pair in self.pairs.tolist():
            if pair[at.P_FLAGS] & at.HAS_ARRIVED and not pair[at.P_FLAGS] & at.RECEIVE_POSTED:
                who = pair[at.P_SENDER]
                since = self.start(pair[at.P_SENDER_ROW])
                found.append(self.told(who >> 32, (who & _LOW) - 1, pair[at.P_SEND] & _LOW, since))
        return sorted(found)

    def held(self) -> list[Posted]:
        """Sends that wait for a free slot of their connection."""
        state, found = self.state, []
        for s in np.flatnonzero(state.slices[: len(self.plan.calls), at.C_LEFT] > 0).tolist():
            messages = int(state.image.slices[s, at.S_MESSAGES])
            begin = int(state.slices[s, at.C_FIFO])
            if not messages or state.slices[s, at.C_START] < 0:
                continue
            slots = state.arena[begin : begin + 2 * messages].reshape(-1, 2)
            for waiting, since in slots[slots[:, 0] >= 2].tolist():
                block, node = (waiting - 2) >> 32, (waiting - 2) & _LOW
                rank, index = (int(self.blocks[block, c]) for c in (at.B_RANK, at.B_SLICE))
                found.append(self.told(rank, index, node, since))
        return sorted(found)

    def unasked(self) -> list[Posted]:
        """Under the rendezvous: sends that nobody has asked for."""
        found = [self.entry(block, node) for block, node in self.flagged(at.POSTED, SEND)]
        for pair in self.pairs.tolist():
            if pair[at.P_FLAGS] & at.UNASKED:
                found.append(self.entry(pair[at.P_SEND] >> 32, pair[at.P_SEND] & _LOW))
        return sorted(found)

    def uncounted(self) -> list[tuple[Posted, int, int, int]]:
        """Nodes that wait for nothing but a count: with their counter, its count, and the count they wait for."""
        state, tmpl, found = self.state, self.state.image.tmpl, []
        begun = self.live & (self.blocks[:, at.B_SPLICED] > 0) & (self.blocks[:, at.B_FLAGS] & at.F_COUNTING > 0)
        states = state.arena.view(np.uint8)
        for block in np.flatnonzero(begun).tolist():
            template = tmpl[self.blocks[block, at.B_TEMPLATE]]
            words, first = (int(self.blocks[block, c]) for c in (at.B_WORDS, at.B_FIRST))
            base, extras = words + int(template[at.T_COUNTED]), words + (int(template[at.T_COUNT]) + 7) // 8
            for counter in range(int(template[at.T_COUNTERS])):
                count, number = state.arena[base + 2 * counter : base + 2 * counter + 2].tolist()
                heap = base + int(state.image.longs[template[at.T_WAITING] + 4 * counter])
                for wanted, node in state.arena[heap : heap + 2 * number].reshape(-1, 2).tolist():
                    needs = int(states[8 * words + node]) & at.NEEDS
                    if needs == at.MOST_NEEDS:
                        needs = int(state.arena[extras + int(state.image.node[first + node, at.N_EXTRA])])
                    if needs == 1:
                        rank, index = (int(self.blocks[block, c]) for c in (at.B_RANK, at.B_SLICE))
                        found.append((self.told(rank, index, node, -1), counter, count, wanted))
        return sorted(found)

    def queued(self) -> list[tuple[int, int, int, tuple[int, ...]]]:
        """Streams that wait for their turn: rank, slice, queue, and the slices that run there."""
        state, arena, found = self.state, self.state.arena, []
        for rank in range(self.plan.ranks):
            for number in range(int(state.ranks[rank, at.R_QUEUES])):
                queue = int(state.ranks[rank, at.R_QUEUE]) + at.QUEUE * number
                users = self.chain(int(arena[queue + at.Q_FIRST]), at.U_RUNNING)
                running = tuple(self.slice_of(run, rank) for run in users)
                # Of streams that came before their turn those are told whose collectives run here.
                early = []
                for share in dict.fromkeys(int(arena[run + at.U_SHARE]) for run in users):
                    held = self.chain(int(arena[share + at.A_EARLY]), at.U_NEXT)
                    early += [run for run in reversed(held) if self.visit(run).queue == number]
                line = self.chain(int(arena[queue + at.Q_LINE]), at.U_NEXT)
                found += [(rank, self.slice_of(run, rank), number, running) for run in (*line, *early)]
        return found

    def chain(self, first: int, column: int) -> list[int]:
        """Runs of a linked list."""
        runs = []
        while first:
            runs.append(first)
            first = int(self.state.arena[first + column])
        return runs

    def visit(self, run: int):
        """The phase that a run is in or waits for."""
        arena = self.state.arena
        instance = self.plan.instances[int(arena[int(arena[run + at.U_SHARE]) + at.A_CALL])]
        return instance.chunks[int(arena[run + at.U_STREAM])].phases[int(arena[run + at.U_PHASE])]

    def slice_of(self, run: int, rank: int) -> int:
        """Index of the slice in which a rank takes part in the phase of a run."""
        visit = self.visit(run)
        return visit.first + visit.call_of[rank]

    def ranks(self, block: int):
        """Ranks by position in the group of a block."""
        index = int(self.blocks[block, at.B_SLICE])
        if index >= 0:
            return self.plan.calls[index].members
        first = int(self.blocks[block, at.B_RANKS])
        return range(first, self.plan.ranks)

    def entry(self, block: int, node: int) -> Posted:
        """A node of a live block that waits since it was issued."""
        rank, index, row = (int(self.blocks[block, c]) for c in (at.B_RANK, at.B_SLICE, at.B_ROW))
        return self.told(rank, index, node, self.start(row + node if row >= 0 else -1))

    def start(self, row: int) -> int:
        """When a node of the node table was issued; -1 where nodes are not recorded."""
        return int(self.state.nodes[row, at.D_START]) if row >= 0 and len(self.state.nodes) else -1

    def told(self, rank: int, index: int, node: int, since: int) -> Posted:
        """A node in the words of the explanation."""
        program = self.plan.program(rank, index)
        members = self.plan.calls[index].members if index >= 0 else None
        peer = int(program.peer[node])
        if peer >= 0:
            peer = members[peer] if members is not None else self.plan.first_rank[self.plan.job_of[rank]] + peer
        return Posted(
            rank=rank,
            slice=index,
            node=int(program.node_id[node]),
            peer=peer,
            tag=int(program.tag[node]),
            bytes=int(program.nbytes[node]),
            since=since,
            kind=int(program.structure.kind[node]),
            row=int(program.rows[node]),
        )
