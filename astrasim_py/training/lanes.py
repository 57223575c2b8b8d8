"""Units of a model, and the chain of a micro-batch through them."""

from collections.abc import Iterable
from dataclasses import dataclass, field
from typing import NamedTuple

from astrasim_py.training.assembly import COMPUTE, Block
from astrasim_py.training.layers import Op


class Unit(NamedTuple):
    """A layer, the embedding or the logits."""

    kind: str
    layer: int | None = None
    wide: bool = False  # attention without the model's window

    @property
    def label(self) -> str:
        return self.kind if self.layer is None else f"L{self.layer}"

    @property
    def columns(self) -> dict[str, int]:
        return {} if self.layer is None else {"layer": self.layer}


@dataclass(slots=True)
class Lane:
    """The chain of one micro-batch in a block: each node waits for the one before it in the chain.

    `behind`: streams that the next node waits for besides. `gradients`: by unit and group, of how many weights a node
    makes the gradients, and its row.
    """

    block: Block
    number: int
    tail: list[int] = field(default_factory=list)
    behind: tuple[str, ...] = ()
    gradients: dict[tuple[Unit, str], list[tuple[int, int]]] = field(default_factory=dict)

    def compute(self, *args, **others) -> int:
        """Add a computation."""
        return self._then(self.block.compute, *args, **others)

    def collective(self, *args, **others) -> int:
        """Add a collective that the rank waits for, unless its stream is another."""
        return self._then(self.block.collective, *args, **({"stream": COMPUTE} | others))

    def first(self) -> tuple[str, ...]:
        """Streams that the first node of a pass waits for; no other does."""
        found, self.behind = self.behind, ()
        return found

    def made(self, unit: Unit, ops: Iterable[Op], row: int) -> None:
        """Note what gradients of weights a node makes."""
        for op in ops:
            if op.part == "W":
                self.gradients.setdefault((unit, weights_group(op)), []).append((weights_of(op), row))

    def _then(self, add, *args, after=None, behind=(), **others) -> int:
        behind = (*behind, *self.first())
        row = add(*args, after=self.tail if after is None else after, lane=self.number, behind=behind, **others)
        self.tail = [row]
        return row


def weights_group(op: Op) -> str:
    """Role of the ranks that share the weights of a product, or the embedding."""
    return "edp" if op.name.startswith("experts") else "dp"


def weights_of(op: Op) -> int:
    """How many weights a product has; of the embedding any number, as it has no other."""
    if op.kind != "gemm":
        return 1
    return int(op.count * op.k * op.n if op.part != "W" else op.count * op.m * op.n)
