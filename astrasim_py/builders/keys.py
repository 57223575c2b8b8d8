"""Options of all builders."""

from collections.abc import Mapping, Sequence
from typing import TypedDict


class BuilderKeys(TypedDict, total=False):
    """Options of builders; each has some of them."""

    root: int | None
    chunks: int
    channels: int
    bidirectional: bool
    overlap: bool
    window: int | None
    slots: int | None
    nodes: int | Sequence[Sequence[int]]
    dims: Sequence[int]
    algorithms: Sequence[str | Mapping[str, object]] | None
    switches: object  # what `switch_trees` makes, or the name of a switch
