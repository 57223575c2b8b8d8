"""Unfinished work when the kernel has stopped."""

from collections.abc import Iterator

import numpy as np

from astrasim_py.engine.compiled import records
from astrasim_py.engine.compiled.state import State
from astrasim_py.system.plan import Plan
from astrasim_py.system.programs import RECV


def unreceived(match: np.void) -> bool:
    """Whether a message has arrived and no receive has taken it."""
    return bool(match["flags"] & records.HAS_ARRIVED) and not match["flags"] & records.RECEIVE_POSTED


class Unfinished:
    """Reads the final tables of a run."""

    def __init__(self, plan: Plan, state: State) -> None:
        self.plan, self.state, self.tables = plan, state, state.tables
        self.blocks = state.used("blocks")
        #: Blocks not freed; a block may end before its detached sends do.
        self.kept = self.blocks["rank"] >= 0
        self.begun = self.kept & (self.blocks["left"] > 0) & (self.blocks["flags"] & records.SPLICED > 0)
        self.matches = [match for match in state.used("matches") if match["flags"] >= 0]

    def progress(self) -> list[int]:
        """Unfinished nodes by rank."""
        begun = self.blocks[self.begun]
        left = np.zeros(self.plan.ranks, dtype=np.int64)
        np.add.at(left, begun["rank"], begun["left"])
        return left.tolist()

    def anything_unreceived(self) -> bool:
        """Whether any arrived message has not been received."""
        if any(map(unreceived, self.matches)):
            return True
        return any(True for _ in self.flagged(records.ARRIVED, RECV))

    def flagged(self, flag: np.integer, kind: int) -> Iterator[tuple[int, int]]:
        """Blocks and nodes of a kind with a flag in their state."""
        states, blocks = self.tables["arena"].view(np.uint8), self.blocks
        kinds = self.tables["nodes"]["kind"]
        # Skip blocks without such a node.
        of_kind = np.append(0, np.cumsum(kinds == kind))
        counts = self.tables["templates"]["nodes"][blocks["template"] * self.kept]
        firsts = blocks["first"] * self.kept
        for number in np.flatnonzero(self.kept & (of_kind[firsts + counts] > of_kind[firsts])).tolist():
            block, first, count = blocks[number], int(firsts[number]), int(counts[number])
            if block["flags"] & records.JOINT_BLOCK and not block["left"]:
                # Its states were freed with the call, with no flag set.
                continue
            begin, step = 8 * int(block["words"]) + int(block["offset"]), int(block["step"])
            for node in np.flatnonzero(states[begin : begin + step * count : step] & flag).tolist():
                if kinds[first + node] == kind:
                    yield number, node
