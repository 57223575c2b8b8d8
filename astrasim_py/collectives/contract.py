"""What a collective promises, as data: which inputs are defined, and what every output cell must hold at the end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

#: (rank, chunk): an input chunk of a rank, or an output chunk of one.
Cell = tuple[int, int]


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """Pre- and post-condition of a collective of n ranks.

    Attributes
    ----------
    ranks : int
    chunks : int
        T: chunks of the full buffer.
    inputs : frozenset of (rank, chunk), or None
        Input chunks that are defined at the start; None for all.
    outputs : mapping of (rank, chunk) to mapping of (rank, chunk) to int
        For each output chunk that is promised: how often each input chunk is contained in it. Output chunks that
        are not named may hold anything.
    """

    ranks: int
    chunks: int
    outputs: Mapping[Cell, Mapping[Cell, int]]
    inputs: frozenset[Cell] | None = None
