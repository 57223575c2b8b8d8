"""Collectives in the network: switches add what ranks send, and send one copy to each that needs it.

Sources: Graham et al. 2016 ("Scalable Hierarchical Aggregation Protocol (SHArP)") and Sapio et al. 2021 (SwitchML) for
aggregation trees with a pool of slots; Klenk et al. 2020 ("An in-network architecture for accelerating shared-memory
multiprocessor collectives") and NCCL's NVLS for reductions in the switch of a node.
"""

import numpy as np

from astrasim_py.builders.draft import Arguments, Draft, check_nodes, finish
from astrasim_py.builders.switch_trees import SwitchTree, switch_tree_of
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.algorithm import Algorithm


def switch_tree(
    collective: str,
    ranks: int,
    *,
    root: int | None = None,
    chunks: int = 1,
    slots: int | None = None,
    switches: object = None,
) -> Algorithm:
    """Switches add and multicast along a tree. Every switch adds what comes from below and sends the sum up, the top
    sends the result down, and every switch hands it to all below it. With a root the top is the switch that the root
    hangs on: reduce sends the sum to the root alone, broadcast has nothing to add.

    `chunks`: T, pieces of the buffer that follow each other. `slots`: A, pieces that a switch holds at once, all by
    default: piece j lies in cell j mod A, and piece j + A waits on a rank for result j, on a switch for its own sends
    of j. `switches`: see `switch_tree_of`; in a scenario those of the topology that can compute.
    """
    place = f"switch_tree {collective} over {ranks} ranks"
    pieces = 0 if collective == "barrier" else chunks
    check_nodes(place, ranks * chunks * 8)
    tree = switch_tree_of(switches, ranks, place)
    if ranks == 1:
        return finish(Draft(1, chunks), "switch_tree", collective, root=root)
    if root is not None:
        tree = tree.rooted(tree.above[root])
    everyone = set(range(len(tree.above))) - {tree.top}
    only = everyone if root is None else {root}
    up = only if collective == "broadcast" else everyone
    down = {"reduce": only, "broadcast": everyone - only}.get(collective, everyone)
    draft = Draft(len(tree.above), max(pieces, 1))
    _SwitchSums(draft, tree, up, down, pieces, min(slots or pieces, pieces))
    return finish(draft, "switch_tree", collective, root=root, actors=tree.names, vertices=tree.vertices)


class _SwitchSums:
    """Draws an aggregation tree. Positions in `up` send to the switch above them, positions in `down` receive from
    it.
    """

    def __init__(self, draft: Draft, tree: SwitchTree, up: set[int], down: set[int], pieces: int, slots: int) -> None:
        self.draft, self.tree, self.up, self.down, self.slots = draft, tree, up, down, slots
        self.data = pieces > 0
        #: Pieces in their order; a barrier has one without data.
        self.piece = np.arange(max(pieces, 1))
        self.below: dict[int, list[int]] = {}
        for position, parent in enumerate(tree.above):
            self.below.setdefault(parent, []).append(position)
        for position in range(tree.ranks):
            self.rank(position)
        for position in range(tree.ranks, len(tree.above)):
            self.switch(position)

    def fields(self, position: int, turn: int) -> Arguments:
        """Columns of a node for each piece; a switch has fewer than four turns for each position."""
        order = self.piece * 4 * len(self.tree.above) + turn
        return {"rank": np.full(len(order), position), "order": order, "idx": self.piece, "cnt": int(self.data)}

    def message(self, position: int, turn: int, peer: int, returns: bool) -> Arguments:
        return self.fields(position, turn) | {"peer": peer, "tag": self.piece + returns * len(self.piece)}

    def cells(self, position: int) -> tuple[int, np.ndarray] | None:
        if not self.data:
            return None
        return (Buffer.INPUT, self.piece) if position < self.tree.ranks else (Buffer.SCRATCH, self.piece % self.slots)

    def hold(self, handles: np.ndarray, until: np.ndarray) -> None:
        """Let nodes of a piece wait for those of the piece whose slot it takes."""
        self.draft.depend(handles[self.slots :], until[: -self.slots])

    def rank(self, position: int) -> None:
        above, cells = self.tree.above[position], self.cells(position)
        gives, takes = position in self.up, position in self.down
        if gives:
            sends = self.draft.send(src=cells, **self.message(position, 0, above, False))
        if takes:
            results = self.draft.recv(dst=cells, **self.message(position, 1, above, True))
        if gives and takes and self.data:
            self.hold(sends, results)

    def switch(self, position: int) -> None:
        draft, above, cells = self.draft, self.tree.above[position], self.cells(position)
        below = self.below[position]
        givers, takers = ([child for child in below if child in subset] for subset in (self.up, self.down))
        first: np.ndarray | None = None
        done: np.ndarray | None = None
        reductions: list[np.ndarray] = []
        for i, giver in enumerate(givers):
            alone = first is None or not self.data
            after = () if done is None else (done,)
            message = self.message(position, 2 * i, giver, False)
            received = draft.recv(dst=cells if alone else None, after=after if alone else (), **message)
            if alone:
                done = received
            else:
                fields = self.fields(position, 2 * i + 1)
                done = draft.reduce(payload=received, src=cells, dst=cells, after=after, **fields)
                reductions.append(done)
            first = done if first is None else first
        if self.data and len(givers) > 1 and done is not None:
            # The unit that reduces serves piece after piece.
            draft.depend(reductions[0][1:], done[:-1])
        turn, sends = 2 * len(givers), []
        if position in self.up:
            sends.append(draft.send(src=cells, after=(done,), **self.message(position, turn, above, False)))
        if position in self.down:
            done = draft.recv(dst=cells, **self.message(position, turn + 1, above, True))
            first = done if first is None else first
        for i, taker in enumerate(takers):
            sends.append(draft.send(src=cells, after=(done,), **self.message(position, turn + 2 + i, taker, True)))
        if self.data and first is not None:
            for handles in sends:
                self.hold(first, handles)


def nvls(collective: str, ranks: int, *, chunks: int = 1, window: int = 2, switches: object = None) -> Algorithm:
    """The one switch of a node adds and multicasts, shard by shard.

    In each of `chunks` rounds every rank sends its piece of every shard, also of its own; the switch gives the sum to
    the owner of the shard, and all_reduce hands what the owner returns to all. all_gather is the second half, and sends
    no rank its own copy. `window`: w rounds under way: a rank sends round i + w when it has the sum of round i, and the
    switch has w cells for each shard's sums and w for its copies. `switches`: the name of the switch; in a scenario the
    one of the topology that can compute and that all ranks are linked to.
    """
    place = f"nvls {collective} over {ranks} ranks"
    check_nodes(place, ranks * ranks * chunks * 6)
    tree = switch_tree_of(switches, ranks, place)
    if len(tree.names) > 1:
        problem = f"{len(tree.names)} switches are above these ranks"
        raise AlgorithmError(place, problem, "use switch_tree, or hierarchical with nvls in every node")
    if ranks == 1:
        return finish(Draft(1, chunks), "nvls", collective)
    draft = Draft(ranks + 1, ranks * chunks)
    _Rounds(draft, collective, chunks, min(window, chunks))
    return finish(draft, "nvls", collective, actors=tree.names, vertices=tree.vertices)


class _Rounds:
    """Draws `nvls`. A piece is (round, shard): there are c·n, round by round."""

    def __init__(self, draft: Draft, collective: str, c: int, window: int) -> None:
        self.draft, self.n, self.c, self.window = draft, draft.ranks - 1, c, window
        self.turn, self.shard = (each.ravel() for each in np.indices((c, self.n)))
        self.chunk = self.shard * c + self.turn
        self.buffer = Buffer.OUTPUT if collective == "all_gather" else Buffer.INPUT
        self.reduces, self.gathers = collective != "all_gather", collective != "reduce_scatter"
        self.every = np.arange(c * self.n)
        for rank in range(self.n):
            self.rank(rank)
        self.switch()

    def own(self, rank: int) -> np.ndarray:
        return np.flatnonzero(self.shard == rank)

    def copied(self, rank: int) -> np.ndarray:
        """Pieces that a rank gets at the end, its own included after a reduction."""
        return self.every if self.reduces else np.flatnonzero(self.shard != rank)

    def block(self, position: int, pieces: np.ndarray, phase: int, turn: int) -> Arguments:
        """Columns of a node for each of some pieces: in a phase of its round, and within that at a turn."""
        order = ((self.turn * 4 + phase) * self.n + self.shard)[pieces] * 2 * self.n + turn
        return {"rank": np.full(len(pieces), position), "order": order, "idx": self.chunk[pieces]}

    def message(self, position: int, pieces: np.ndarray, phase: int, peer: int, turn: int = 0) -> Arguments:
        """Phases: 0 contributions, 1 sums, 2 what their owners return, 3 copies."""
        tag = {"peer": peer, "tag": pieces + phase * len(self.every)}
        return self.block(position, pieces, phase, turn) | tag

    def cells(self, position: int, pieces: np.ndarray, copies: bool = False) -> tuple[int, np.ndarray]:
        """Cells of pieces: on the switch the sums, and apart from them the copies for all ranks."""
        if position < self.n:
            return self.buffer, self.chunk[pieces]
        shard = self.shard + (self.n if copies and self.reduces else 0)
        return Buffer.SCRATCH, (shard * self.window + self.turn % self.window)[pieces]

    def hold(self, nodes: np.ndarray, pieces: np.ndarray, until: np.ndarray, results: np.ndarray, alike: bool) -> None:
        """Let nodes of pieces wait for nodes of `results` that are `window` rounds earlier, of the same shard if so."""
        waits = self.turn[pieces][:, None] == self.turn[results] + self.window
        if alike:
            waits &= self.shard[pieces][:, None] == self.shard[results]
        child, parent = np.nonzero(waits)
        self.draft.depend(nodes[child], until[parent])

    def rank(self, rank: int) -> None:
        draft, switch, ranks, shard, copied = self.draft, self.n, self.every, self.own(rank), self.copied(rank)
        after: tuple[np.ndarray, ...] = ()
        if self.reduces:
            sends = draft.send(src=self.cells(rank, ranks), **self.message(rank, ranks, 0, switch))
            sums = draft.recv(dst=self.cells(rank, shard), **self.message(rank, shard, 1, switch))
            self.hold(sends, ranks, sums, shard, alike=False)
            after = (sums,)
        if self.gathers:
            draft.send(src=self.cells(rank, shard), after=after, **self.message(rank, shard, 2, switch))
            draft.recv(dst=self.cells(rank, copied), **self.message(rank, copied, 3, switch))

    def switch(self) -> None:
        draft, switch, ranks = self.draft, self.n, self.every
        owners = [self.own(rank) for rank in range(self.n)]
        if self.reduces:
            cells = self.cells(switch, ranks)
            first = done = draft.recv(dst=cells, **self.message(switch, ranks, 0, 0))
            for rank in range(1, self.n):
                received = draft.recv(**self.message(switch, ranks, 0, rank, 2 * rank))
                block = self.block(switch, ranks, 0, 2 * rank + 1)
                done = draft.reduce(payload=received, src=cells, dst=cells, after=(done,), **block)
            for rank, shard in enumerate(owners):
                message = self.message(switch, shard, 1, rank)
                sums = draft.send(src=self.cells(switch, shard), after=(done[shard],), **message)
                self.hold(first, ranks, sums, shard, alike=True)
        if self.gathers:
            held = np.empty(len(ranks), dtype=np.int64)
            for rank, shard in enumerate(owners):
                message = self.message(switch, shard, 2, rank)
                held[shard] = draft.recv(dst=self.cells(switch, shard, copies=True), **message)
            for rank in range(self.n):
                part = self.copied(rank)
                message = self.message(switch, part, 3, rank, rank)
                copies = draft.send(src=self.cells(switch, part, copies=True), after=(held[part],), **message)
                self.hold(held, ranks, copies, part, alike=True)
