"""`Steps`: a whole algorithm as one table of steps, which is what verification looks at.

It is made of traces (`steps_of`), or directly of another representation of a program. One row is what one rank does
at once: a plain send, receive, copy or reduction, or a fused group of them, which holds its incoming slot until its
outgoing one is free.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field

from astrasim_py.collectives.contract import Contract


@dataclass(slots=True, kw_only=True)
class Connection:
    """An ordered channel between two ranks, with the steps that send and receive on it, first to last.

    The k-th send meets the k-th receive. `sends` and `receives` differ in length where the program is ill-formed.
    """

    source: int
    target: int
    channel: int
    sends: list[int] = field(default_factory=list)
    receives: list[int] = field(default_factory=list)


@dataclass(slots=True, kw_only=True)
class Steps:
    """All steps of all ranks; every list has one entry per step g, ranks ascending.

    What a step does, in this order: it takes its data – what it receives (`takes`), else what step `payload` holds,
    else the cells it reads; if it `reduces`, it adds the cells it reads (to what it received or was handed), or, with
    neither, the cells it reads to the cells it writes; it writes them (`write_*`); it sends them (`gives`).

    Attributes
    ----------
    name, collective : str
    ranks, chunks : int
        n and T: chunks of the full buffer.
    root : int or None
    in_place : bool
    contract : Contract or None
        Of a custom collective, where it is known.
    protocol : str
        ``Simple``, ``LL``, ``LL128`` or empty.
    inputs, outputs : int
        Declared cells of a rank's input and output buffer; `chunks` by default (for cells see `verify.cells`).
    rank : list of int
    chain : list of int
        Thread block, numbered over all ranks; -1 for a step that belongs to none.
    count : list of int
        Chunks that it moves.
    takes, gives : list of int
        Connection that it receives from and sends to, -1 for none.
    reduces : list of bool
    payload : list of int
        Step of the same rank whose data it takes, -1 for none.
    read_buf, read_off, write_buf, write_off : list of int
        Cells it reads and writes, `Buffer` and offset in chunks; -1 for none.
    parents : list of tuple of int
        Steps of the same rank that must be done before (the order of thread blocks and dependencies).
    waits : list of tuple of int
        Those of `parents` that are explicit dependencies between thread blocks.
    connections : list of Connection
    place : callable
        int -> str: a step for messages, such as ``rank 3 tb 1 step 4``.
    line : list of int
        Line of `source` that a step was written in, 0 where unknown.
    source : str
    """

    name: str
    collective: str
    ranks: int
    chunks: int
    rank: list[int]
    chain: list[int]
    count: list[int]
    takes: list[int]
    gives: list[int]
    reduces: list[bool]
    payload: list[int]
    read_buf: list[int]
    read_off: list[int]
    write_buf: list[int]
    write_off: list[int]
    parents: list[tuple[int, ...]]
    waits: list[tuple[int, ...]]
    connections: list[Connection]
    place: Callable[[int], str]
    line: list[int]
    root: int | None = None
    in_place: bool = True
    contract: Contract | None = None
    protocol: str = ""
    inputs: int = 0
    outputs: int = 0
    source: str = ""

    def __len__(self) -> int:
        return len(self.rank)
