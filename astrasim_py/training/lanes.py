"""Units of a model, and the chain of a micro-batch through them."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from astrasim_py.training.assembly import COMPUTE, Block
from astrasim_py.training.layers import ACCUMULATE, Op
from astrasim_py.training.schedules import virtual_stage
from astrasim_py.training.strategy import Layout


class Unit(NamedTuple):
    """A layer, the embedding or the logits."""

    kind: str
    layer: int = -1  # of the embedding, the logits and the optimizer
    wide: bool = False  # attention without the model's window

    @property
    def label(self) -> str:
        return self.kind if self.layer < 0 else f"L{self.layer}"

    @property
    def columns(self) -> dict[str, int]:
        return {} if self.layer < 0 else {"layer": self.layer}


def chunks_of(layout: Layout[int], stage: int) -> list[list[Unit]]:
    """Layers of each chunk of a pipeline rank, in forward order."""
    model, chunks = layout.model, []
    dense = model.dense_layers if model.experts else model.layers
    wide = [bool(model.window) and model.reads_all(layer) for layer in range(model.layers + model.mtp)]
    for chunk in range(layout.vp):
        virtual = virtual_stage(layout.schedule, layout.pp, stage, chunk)
        layers = layout.chunk_layers(stage, chunk)
        units = [Unit("dense" if layer < dense else "moe", layer, wide[layer]) for layer in layers]
        if virtual == 0:
            units = [Unit("embedding"), *units]
        if virtual == layout.pp * layout.vp - 1:
            units += [Unit("mtp", layer, wide[layer]) for layer in range(model.layers, len(wide))] + [Unit("logits")]
        chunks.append(units)
    return chunks


@dataclass(slots=True)
class Lane:
    """The chain of one micro-batch in a block.

    `tail`: rows that its next node waits for. `behind`: streams that it waits for besides. `gradients`: by unit and
    group, of how many weights a node makes the gradients, and its row.
    """

    block: Block
    number: int
    tail: list[int] = field(default_factory=list)
    behind: tuple[str, ...] = ()
    gradients: dict[tuple[Unit, str], list[tuple[int, int]]] = field(default_factory=dict)

    def compute(self, *args: Any, **others: Any) -> int:
        """Add a computation."""
        return self._add(self.block.compute, *args, **others)

    def collective(self, *args: Any, **others: Any) -> int:
        """Add a collective that the rank waits for, unless its stream is another."""
        return self._add(self.block.collective, *args, **({"stream": COMPUTE} | others))

    def wait(self, *args: Any, **others: Any) -> int:
        """Add a node that takes time in the stream of computation, unless its stream is another."""
        return self._add(self.block.wait, *args, **({"stream": COMPUTE} | others))

    def first(self) -> tuple[str, ...]:
        """Streams that the first node of a pass waits for; no other does."""
        streams, self.behind = self.behind, ()
        return streams

    def made(self, unit: Unit, ops: Iterable[Op], row: int) -> None:
        """Note what gradients of weights a node makes."""
        for op in ops:
            if op.part == "W" and op.name != ACCUMULATE:
                self.gradients.setdefault((unit, weights_group(op)), []).append((weights_of(op), row))

    def _add(self, add: Callable[..., int], *args: Any, behind: tuple[str, ...] = (), **others: Any) -> int:
        return add(*args, lane=self.number, behind=(*behind, *self.first()), **others)


def weights_group(op: Op) -> str:
    """Role of the ranks that share the weights of a product, or the embedding."""
    return "edp" if op.name.startswith("experts") else "dp"


def weights_of(op: Op) -> int:
    """How many weights a product has; of the embedding any number, as it has no other."""
    if op.kind != "gemm":
        return 1
    return int(op.count * op.k * op.n if op.part != "W" else op.count * op.m * op.n)
