"""Contracts: the inputs that are defined before a collective, and the outputs that it promises."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field

from astrasim_py.collectives.collective import COLLECTIVES, collective_name, promise_of
from astrasim_py.core.document import parse_document
from astrasim_py.core.errors import AlgorithmError, ScenarioError
from astrasim_py.core.files import read_regular

#: (rank, chunk): an input chunk of a rank, or an output chunk of one.
Cell = tuple[int, int]

#: Largest file that `read_contract` reads, bytes; and promised output chunks of a contract at most.
MAX_FILE = 64 * 2**20
MAX_OUTPUTS = 2**22

#: ``RANK:CHUNK`` or ``TIMES*RANK:CHUNK``.
_TERM = re.compile(r"(?:([0-9]{1,7})\s*\*\s*)?([0-9]{1,7})\s*:\s*([0-9]{1,7})")


@dataclass(frozen=True, slots=True, kw_only=True)
class Contract:
    """Pre- and post-condition of a collective of n ranks.

    Attributes
    ----------
    chunks : int
        T: chunks of the full buffer.
    inputs : frozenset of (rank, chunk), or None
        Input chunks that are defined at the start; None for all.
    outputs : mapping of (rank, chunk) to mapping of (rank, chunk) to int
        For each output chunk that is promised: how often each input chunk is contained in it. Output chunks that
        are not named may hold anything.

    Raises
    ------
    AlgorithmError
        A rank or chunk that does not exist.
    """

    ranks: int
    chunks: int
    outputs: Mapping[Cell, Mapping[Cell, int]]
    inputs: frozenset[Cell] | None = None
    place: str = field(default="contract", compare=False)

    def __post_init__(self) -> None:
        if self.ranks < 1 or self.chunks < 1:
            raise AlgorithmError(self.place, f"has {self.ranks} ranks and {self.chunks} chunks", "give at least 1")
        last: Mapping[Cell, int] | None = None
        for cell, terms in self.outputs.items():
            # Neighbouring cells often share one mapping.
            shared, last = terms is last, terms
            for r, k in (cell,) if shared else (cell, *terms):
                if not (0 <= r < self.ranks and k >= 0):
                    problem = f"names chunk {k} of rank {r}, and there are {self.ranks} ranks"
                    raise AlgorithmError(self.place, problem, f"write ranks 0 to {self.ranks - 1}, chunks from 0")
            if not shared and any(times < 1 for times in terms.values()):
                problem = f"chunk {cell[1]} of rank {cell[0]} contains something less than once"
                raise AlgorithmError(self.place, problem, "leave out what is not contained")

    @classmethod
    def of(cls, collective: str, ranks: int, chunks: int, root: int | None = None) -> Contract:
        """The contract of a collective that has a name; see `astrasim_py.verification.verifier` for the table."""
        promise = promise_of(collective)
        if collective == "barrier" or collective not in COLLECTIVES:
            raise AlgorithmError(collective, "has no contract of its own", "give one")
        if promise.sharded and chunks % ranks:
            problem = f"{chunks} chunks do not divide among {ranks} ranks"
            raise AlgorithmError(collective, problem, f"take a multiple of {ranks}")
        root = root or 0
        inputs = None
        if promise.gathers or promise.from_root:
            inputs = frozenset((r, k) for r in range(ranks) for k in promise.before(r, ranks, chunks, root))
        cells: dict[tuple[range, int], list[Cell]] = {}
        for rank in range(ranks):
            for k, value in enumerate(promise.after(rank, ranks, chunks, root)):
                cells.setdefault(value, []).append((rank, k))
        # Cells that are promised the same value share its mapping, and follow each other.
        terms = {value: {(source, value[1]): 1 for source in value[0]} for value in cells}
        outputs = {cell: terms[value] for value, held in cells.items() for cell in held}
        return cls(ranks=ranks, chunks=chunks, outputs=outputs, inputs=inputs, place=collective)

    def to_text(self) -> str:
        """One line of JSON from which `from_text` makes the same contract."""
        outputs = [
            [rank, chunk, [[r, k, times] for (r, k), times in sorted(terms.items())]]
            for (rank, chunk), terms in sorted(self.outputs.items())
        ]
        inputs = None if self.inputs is None else [list(cell) for cell in sorted(self.inputs)]
        document = {"ranks": self.ranks, "chunks": self.chunks, "inputs": inputs, "outputs": outputs}
        return json.dumps(document, separators=(",", ":"))

    @classmethod
    def from_text(cls, text: str, place: str = "contract") -> Contract:
        """The contract that `to_text` wrote."""
        try:
            document = json.loads(text)
            inputs = document["inputs"]
            return cls(
                ranks=int(document["ranks"]),
                chunks=int(document["chunks"]),
                outputs={
                    (int(rank), int(chunk)): {(int(r), int(k)): int(times) for r, k, times in terms}
                    for rank, chunk, terms in document["outputs"]
                },
                inputs=None if inputs is None else frozenset((int(r), int(k)) for r, k in inputs),
                place=place,
            )
        except (ValueError, KeyError, TypeError, RecursionError) as error:
            problem = f"is not a contract: {type(error).__name__}: {str(error)[:80]}"
            raise AlgorithmError(place, problem, "write it with convert") from None


# ------------------------------------------------------------------------------------------------ YAML


def read_contract(path: str | os.PathLike[str]) -> Contract:
    """Read a contract from YAML.

    ::

        ranks: 3
        chunks: 2
        inputs: {0: all}          # which chunks are defined at the start; all of all ranks by default
        outputs:
          1: {0: "0:0", 1: "0:1"} # rank 1: chunk 0 is chunk 0 of rank 0 …
          2: {0: "0:0 + 1:0"}     # … and here the sum of two; "2*0:0" counts one twice

    or, for a collective that has a name, ``{collective: broadcast, ranks: 3, chunks: 2, root: 0}``.

    Raises
    ------
    AlgorithmError
        ``file: what, why, what to write instead``.
    """
    place = os.fspath(path)
    data = read_regular(path, MAX_FILE, AlgorithmError, what="a contract in YAML", remedy="cut the contract")
    try:
        document = parse_document(data, place, most=MAX_OUTPUTS).plain()
    except ScenarioError as error:
        raise AlgorithmError(error.place, error.problem, error.remedy) from None
    return contract_from_data(document, place)


def contract_from_data(document: object, place: str = "contract") -> Contract:
    """A contract from what its YAML says; see `read_contract`."""

    def bad(problem: str, remedy: str) -> AlgorithmError:
        return AlgorithmError(place, problem, remedy)

    if not isinstance(document, Mapping):
        raise bad("is not a mapping", "write ranks, chunks and outputs")
    keys = ("collective", "ranks", "chunks", "root", "inputs", "outputs")
    unknown = [key for key in document if key not in keys]
    if unknown:
        raise bad(f'key "{unknown[0]}" is unknown', f"write {', '.join(keys)}")

    def whole(key: str, least: int, most: int) -> int:
        value = document.get(key)
        if type(value) is not int or not least <= value <= most:
            raise bad(f"{key} is {value!r}", f"write a whole number, {least} to {most}")
        return value

    ranks, chunks = whole("ranks", 1, 2**20), whole("chunks", 1, 2**20)
    if ranks * chunks > MAX_OUTPUTS:
        raise bad(f"{ranks} ranks of {chunks} chunks are too many", f"keep the product within {MAX_OUTPUTS}")
    if "collective" in document:
        if "outputs" in document or "inputs" in document:
            raise bad("gives both a collective and a contract", "write one of both")
        collective = collective_name(str(document["collective"]), place)
        root = whole("root", 0, ranks - 1) if promise_of(collective).rooted else None
        return Contract.of(collective, ranks, chunks, root)
    outputs: dict[Cell, dict[Cell, int]] = {}
    for rank, cells in _ranked(document.get("outputs"), "outputs", ranks, bad):
        if not isinstance(cells, Mapping):
            raise bad(f"outputs of rank {rank} are not a mapping", 'write e.g. {0: "0:0 + 1:0"}')
        for chunk, text in cells.items():
            chunk = _key(chunk)
            if type(chunk) is not int or not 0 <= chunk < chunks:
                raise bad(f"output chunk {chunk!r} of rank {rank}", f"write 0 to {chunks - 1}")
            outputs[rank, chunk] = _terms(text, ranks, chunks, bad)
    if not outputs:
        raise bad("promises nothing", 'write outputs: {RANK: {CHUNK: "RANK:CHUNK + …"}}')
    inputs = None
    if document.get("inputs") is not None:
        pairs: list[Cell] = []
        for rank, listed in _ranked(document["inputs"], "inputs", ranks, bad):
            listed = range(chunks) if listed == "all" else listed
            if not isinstance(listed, Iterable) or isinstance(listed, str):
                raise bad(f"inputs of rank {rank} are {listed!r}", "write a list of chunks, or all")
            for chunk in listed:
                if type(chunk) is not int or not 0 <= chunk < chunks:
                    raise bad(f"input chunk {chunk!r} of rank {rank}", f"write 0 to {chunks - 1}")
                pairs.append((rank, chunk))
        inputs = frozenset(pairs)
    return Contract(ranks=ranks, chunks=chunks, outputs=outputs, inputs=inputs, place=place)


def _key(key: object) -> object:
    """A key of a mapping, which YAML gives as text, as the number that it is."""
    return int(key) if isinstance(key, str) and key.isascii() and key.isdecimal() and len(key) < 8 else key


def _ranked(value: object, key: str, ranks: int, bad) -> Iterable[tuple[int, object]]:
    if not isinstance(value, Mapping):
        raise bad(f"{key} is {type(value).__name__}", f"write {key}: {{RANK: …}}")
    for rank, rest in value.items():
        rank = _key(rank)
        if type(rank) is not int or not 0 <= rank < ranks:
            raise bad(f"{key} of rank {rank!r}", f"write ranks 0 to {ranks - 1}")
        yield rank, rest


def _terms(text: object, ranks: int, chunks: int, bad) -> dict[Cell, int]:
    count_of: dict[Cell, int] = {}
    for term in map(str.strip, str(text).split("+")):
        match = _TERM.fullmatch(term)
        if match is None:
            raise bad(f'"{term[:40]}" is not a chunk of a rank', 'write RANK:CHUNK in quotes, e.g. "0:0 + 1:0"')
        often, r, k = (int(part or 1) for part in match.groups())
        if r >= ranks or k >= chunks or often < 1:
            raise bad(f'"{term}" does not exist', f"write ranks below {ranks} and chunks below {chunks}")
        count_of[r, k] = count_of.get((r, k), 0) + often
    return count_of
