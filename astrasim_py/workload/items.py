"""Items of generated workloads, as scenarios and Python code write them."""

from typing import Annotated, Any, ClassVar

from pydantic import BeforeValidator, Field, WithJsonSchema
from pydantic.json_schema import SkipJsonSchema

from astrasim_py.core.by_need import ReadByNeed
from astrasim_py.core.fields import (
    EITHER,
    ONE,
    SEVERAL,
    Name,
    Operations,
    Rank,
    Ranks,
    Size,
    Speed,
    Time,
    whole,
    wrong,
)
from astrasim_py.core.strict_model import StrictModel, example


def _one_or_more(value: object) -> object:
    return (value,) if isinstance(value, str) else value


After = Annotated[
    tuple[Name, ...],
    BeforeValidator(_one_or_more),
    WithJsonSchema(
        {
            "anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "string"}}],
            "description": "names of items that must be done before; [] for none (by default, the one before)",
        }
    ),
]
Repeat = Annotated[int, whole(1, 100_000)]
MAX_TILES = 4096
RootPosition = Annotated[int, whole(0, 2**20 - 1, "position in the group")]


class Item(StrictModel):
    """Keys of every item."""

    name: Name | None = Field(default=None, description="for `after`")
    after: After | None = None
    repeat: Repeat = Field(default=1, description="number of repetitions, one after the other")


class Collective(Item):
    """A collective; `size` is the full buffer (nccl-tests' convention)."""

    _python_only: ClassVar[tuple[str, ...]] = ("type", "root")

    type: SkipJsonSchema[str] = ""
    size: Size = example("64 MiB")
    group: Annotated[Annotated[Name, ONE] | Annotated[Ranks, SEVERAL], EITHER] | None = Field(
        default=None, description="name of a group, or ranks; all ranks by default"
    )
    root: SkipJsonSchema[RootPosition] = 0


_SIZES = {"anyOf": [{"type": "string"}, {"type": "array", "items": {"type": "array"}}]}


class AllToAll(Collective):
    """An all_to_all, of equal blocks or of unequal ones."""

    size: Size = Field(default=0, examples=["64 MiB"])
    blocks: Annotated[Any, ReadByNeed("astrasim_py.workload.blocks:read_written", _SIZES)] = Field(
        default=None, description="in place of size: bytes from each rank (row) to each, or a file of them"
    )

    def _complete(self) -> None:
        if ("size" in self.model_fields_set) == (self.blocks is not None):
            if self.blocks is None:
                raise wrong('"size" is missing', "write e.g. size: 64 MiB, or blocks: sizes.csv")
            raise wrong("has size and blocks", "drop size")


class RootedCollective(Collective):
    """A collective with a root: a position in the group."""

    _python_only = ("type",)

    root: RootPosition = 0


class Barrier(Collective):
    """Every rank waits until all have reached it."""

    _python_only = ("type", "root", "size")

    type: SkipJsonSchema[str] = "barrier"
    size: SkipJsonSchema[Size] = 0


class Compute(Item):
    """Computation: a given time, or a number of operations under a roofline."""

    time: Time | None = example("100 us", default=None)
    operations: Operations | None = example("2.5 GFLOP", default=None)
    bytes: Size | None = Field(default=None, description="bytes that it moves from and to memory")
    ranks: Ranks | None = Field(default=None, description="ranks that compute; all by default")
    tiles: Annotated[int, whole(1, MAX_TILES)] = Field(default=1, description="equal parts, which run in turn")
    consumes: Name | None = Field(
        default=None, description="the collective before, each part of whose output a tile waits for"
    )
    produces: Name | None = Field(default=None, description="the collective after, parts of whose input the tiles are")
    tile_overhead: Time | None = Field(default=None, description="added to each of several tiles")
    comm_slows_compute: Speed | None = Field(
        default=None, description="speed of several tiles, which share the NPU with communication; 1 or less"
    )

    def _complete(self) -> None:
        if (self.time is None) == (self.operations is None):
            problem = "neither time nor operations" if self.time is None else "both time and operations"
            raise wrong(f"has {problem}", 'write time: "100 us", or operations: "2.5 GFLOP"')
        if self.bytes is not None and self.operations is None:
            raise wrong("bytes without operations", "drop bytes", ("bytes",))
        if self.comm_slows_compute is not None and self.comm_slows_compute > 1:
            raise wrong("is more than 1", "write a speed, such as 0.9", ("comm_slows_compute",))
        used = self.consumes is not None or self.produces is not None
        for key in ("tile_overhead", "comm_slows_compute"):
            if getattr(self, key) is not None and not used:
                raise wrong("needs consumes or produces", "name a collective", (key,))
            if getattr(self, key) is not None and self.time is None:
                raise wrong("needs a time", 'write time: "100 us" in place of operations', (key,))
        if self.tiles > 1 and not used:
            raise wrong("needs consumes or produces", "name a collective", ("tiles",))
        if used and self.repeat > 1:
            raise wrong("does not go with consumes or produces", "write one item for each repetition", ("repeat",))


class Send(Item):
    """A message from one rank to another."""

    source: Rank = Field(alias="from", examples=["0"])
    to: Rank = example("1")
    size: Size = example("1 MiB")
    tag: Annotated[int, whole(0, 2**31 - 1)] = 0

    def _complete(self) -> None:
        if self.source == self.to:
            raise wrong(f"rank {self.to} sends to itself", "name another rank", ("to",))


class Memory(Item):
    """A load from or a store to remote memory."""

    load: Size | None = example("1 MiB", default=None)
    store: Size | None = None
    ranks: Ranks | None = Field(default=None, description="ranks that do it; all by default")

    def _complete(self) -> None:
        if (self.load is None) == (self.store is None):
            raise wrong("has neither load nor store" if self.load is None else "has load and store", "write one")
