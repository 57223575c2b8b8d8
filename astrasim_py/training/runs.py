"""Nodes of a layer: its operations in runs, each of which is one node of computation with its collectives."""

from collections.abc import Container, Iterable, Sequence
from dataclasses import dataclass, field

from astrasim_py.training.layers import Comm, Item, Op


@dataclass(slots=True, eq=False)
class NodeOps:
    """Operations of one node, the collectives that it waits for, and those that wait for it."""

    ops: list[Op] = field(default_factory=list)
    before: list[Comm] = field(default_factory=list)
    after: list[Comm] = field(default_factory=list)
    ring: Comm | None = None  # around which the operation is computed step by step
    name: str = ""  # in its layer and pass
    segments: list = field(default_factory=list)  # the nodes that it becomes

    def uses(self, roles: Container[str]) -> bool:
        """Whether it has collectives of one of these groups."""
        return any(comm.group in roles for comm in self.before + self.after)

    @property
    def light(self) -> bool:
        """Whether it has only element-wise operations without dependent communication."""
        return not self.before and not self.after and all(op.kind == "elementwise" for op in self.ops)


def runs_of(
    items: Iterable[Item], nodes: str, *, apart: bool = False, cut: Container[str] = ()
) -> list[NodeOps | Comm]:
    """Runs of a pass, in order, between the all-to-alls.

    `nodes`: ``fine`` makes a run of each operation; ``coarse`` one of each block of a layer, cut at all-to-alls and
    around attention that exchanges keys and values; element-wise operations join their neighbour. The gathers of a
    run come before it, other collectives after. `apart`: operations after an all-to-all are always a node of their own.
    `cut`: groups whose collectives are used in tiles: a run begins with one that brings its input, and ends with one
    that takes its output; products of weight gradients after that are still part of it.
    """
    items = list(items)
    if nodes == "fine":
        runs = _split(items, True, cut)
        for run in runs:
            if isinstance(run, NodeOps) and run.ops:
                run.name = f"{run.ops[0].block}.{run.ops[0].name}"
        return runs
    sections: list[list[Item]] = []
    for item in items:
        if not sections or block_of(sections[-1][-1]) != block_of(item):
            sections.append([])
        sections[-1].append(item)
    return [run for section in sections for run in _named(_joined(_split(section, False, cut), apart, cut))]


def block_of(item: Item) -> tuple[str, bool]:
    """Items of one section of a layer may be one node: those of a block, computed for the first time or again."""
    return "moe" if item.block == "shared" else item.block, item.part == "R"


def _split(items: list[Item], fine: bool, cut: Container[str]) -> list[NodeOps | Comm]:
    rings = [item for item in items if isinstance(item, Comm) and item.collective == "ring"]
    runs: list[NodeOps | Comm] = []
    run = NodeOps()

    def close() -> None:
        nonlocal run
        if run.ops or run.before or run.after:
            runs.append(run)
        run = NodeOps()

    for item in items:
        if isinstance(item, Op):
            ring = item.kind == "attention" and next((ring for ring in rings if ring.part == item.part), None)
            ends = any(comm.group in cut for comm in run.after)
            if ring or (run.ops and (fine or run.ring or ends) and not (ends and item.part == "W")):
                close()
            run.ops.append(item)
            run.ring = ring or None
        elif item.group in cut:
            if brings(item) and not (item.part == "W" and run.after):
                close()
            (run.before if brings(item) else run.after).append(item)
        elif item.collective == "all_to_all":
            close()
            runs.append(item)
        elif item.collective == "all_gather":
            if fine and run.ops:
                close()
            run.before.append(item)
        elif item.collective != "ring":
            run.after.append(item)
    close()
    return runs


def brings(comm: Comm) -> bool:
    """Whether a collective brings the input of the operations after it; others take the output of those before."""
    if comm.collective == "all_to_all":
        return (comm.name == "dispatch") == (comm.part in ("F", "R"))
    return comm.collective == "all_gather"


def _joined(runs: list[NodeOps | Comm], apart: bool, cut: Container[str]) -> list[NodeOps | Comm]:
    """The same without light runs, where their operations can be part of a neighbour."""
    if any(isinstance(run, NodeOps) and run.uses(cut) for run in runs):
        return runs
    heavy = [run for run in runs if isinstance(run, NodeOps) and not run.light and not run.ring]
    removed: list[NodeOps] = []
    for place, run in enumerate(runs):
        if isinstance(run, Comm) or not run.light or not heavy or (apart and isinstance(([None, *runs])[place], Comm)):
            continue
        before = [other for other in runs[:place] if other in heavy]
        into = before[-1] if before else heavy[0]
        into.ops = into.ops + run.ops if before else run.ops + into.ops
        removed.append(run)
    return [item for item in runs if item not in removed]


def _named(runs: list[NodeOps | Comm]) -> list[NodeOps | Comm]:
    """Runs named by their block, and by their first product where the block has several."""
    computing = [run for run in runs if isinstance(run, NodeOps) and run.ops]
    blocks = [main(run.ops).block for run in computing]
    for run, block in zip(computing, blocks, strict=True):
        run.name = block if blocks.count(block) == 1 else f"{block}.{main(run.ops).name}"
    return runs


def main(ops: Sequence[Op]) -> Op:
    """The operation that gives a node its name."""
    return next((op for op in ops if op.kind != "elementwise"), ops[0])
