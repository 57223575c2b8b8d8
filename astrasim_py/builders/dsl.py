"""Algorithms written in Python, chunk by chunk: a function that is run once and leaves a trace.

Beside MSCCLang (msccl-tools): transfers are ``=`` and ``+=``, not ``chunk(r, buffer, i).copy(…)`` and ``.reduce(…)``;
thread blocks and channels are assigned, with channels as a hint; what was made is always verified, also slots and
races, with an error at the line; contracts are data, not a subclass with ``check``; there are broadcast, reduce,
gather and scatter; parallel instances are right for steps of several chunks, too.

::

    from astrasim_py.builders.dsl import algorithm

    @algorithm("all_reduce")
    def ring(a):
        for s in range(a.n - 1):
            for i in range(a.n):
                a[(i + s + 1) % a.n][i] += a[(i + s) % a.n][i]
        for s in range(a.n - 1):
            for i in range(a.n):
                a[(i + s) % a.n][i] = a[(i + s - 1) % a.n][i]

    ring(8)  # an Algorithm of 8 ranks, verified

``a[rank][i]`` is chunk i of a rank's buffer, ``a[rank][i:j]`` several that travel together. ``=`` copies and ``+=``
adds; between two ranks either is a message. Program order holds for one cell at a time: a step waits for
the last write of what it reads, and for the last write and the reads since of what it writes. Steps on different cells
run in any order, all ranks at once. Sizes are counted in chunks only, so one algorithm serves every size.
"""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from operator import index as whole
from typing import Any

from astrasim_py.builders.dsl_machine import Machine
from astrasim_py.builders.dsl_trace import MAX_SCRATCH, Run, name_of, place_in, place_of
from astrasim_py.builders.ordered import checked
from astrasim_py.collectives.collective import CUSTOM, collective_name, promise_of
from astrasim_py.collectives.contract import Contract
from astrasim_py.core.errors import AlgorithmError, AstraError
from astrasim_py.program.algorithm import Algorithm


@dataclass(frozen=True, kw_only=True)
class AlgorithmOptions:
    """What the decorator says of an algorithm; see `algorithm`."""

    collective: str
    ranks: int | None
    chunks: int | Callable[[int], int] | None
    root: int
    in_place: bool | None
    contract: Contract | Callable[[int, int], Contract] | None
    scratch: Mapping[str, int] | None
    protocol: str
    name: str
    verify: bool


#: AlgorithmOptions that a call may give; everything else goes to the function.
_RESERVED = ("ranks", "chunks", "root", "in_place", "contract", "protocol", "name", "verify")


def algorithm(
    collective: str = CUSTOM,
    *,
    ranks: int | None = None,
    chunks: int | Callable[[int], int] | None = None,
    root: int = 0,
    in_place: bool | None = None,
    contract: Contract | Callable[[int, int], Contract] | None = None,
    scratch: Mapping[str, int] | None = None,
    protocol: str = "",
    name: str = "",
    verify: bool = True,
) -> Callable[[Callable], Definition]:
    """Make an algorithm of a function that says, chunk by chunk, what moves where.

    Parameters
    ----------
    collective : str
        A standard collective, or ``custom``.
    ranks : int, optional
        Size of the group; by default it is given when the algorithm is made.
    chunks : int or callable, optional
        Chunks of the full buffer, or a function of the ranks; by default those of the contract, else one per rank.
    root : int
        Of a rooted collective.
    in_place : bool, optional
        Input and output are one buffer; the default, except for all_to_all and custom collectives.
    contract : Contract or callable, optional
        What a custom collective promises, or a function of ranks and chunks; without it the result is not verified.
    scratch : mapping of str to int, optional
        Names of scratch buffers and their chunks; by default any name may be used, and its buffer grows with use.
    protocol : str
        ``Simple``, ``LL`` or ``LL128`` if it is made for one.
    name : str
        By default that of the function.
    verify : bool
        Verify the result.

    Returns
    -------
    callable
        Turns ``f(a, **parameters)``, with `a` a `Machine`, into a `Definition`.

    Raises
    ------
    AlgorithmError
        A wrong argument or step, at ``file:line`` of the user's function.

    Examples
    --------
    >>> @algorithm("broadcast", chunks=1)
    ... def star(a):
    ...     for rank in range(a.n):
    ...         a[rank][0] = a[a.root][0]
    >>> star(4).messages
    3
    """
    options = AlgorithmOptions(**locals())
    if callable(collective):
        raise AlgorithmError(
            place_of(sys._getframe(1)), "@algorithm names no collective", 'write e.g. @algorithm("all_reduce")'
        )
    return lambda function: Definition(function, options)


class Definition:
    """A function that `algorithm` decorates: call it to make an `Algorithm`.

    ``definition(ranks, chunks, *, root, in_place, contract, protocol, name, verify, **parameters)``; everything left
    out is as in the decorator, and the parameters go to the function. ``definition(collective, ranks, …)`` does the
    same, as scenarios call it (``python: my_algorithms.py:ring``).
    """

    def __init__(self, function: Callable, options: AlgorithmOptions) -> None:
        self.function = function
        self._options = options
        self.__doc__ = function.__doc__
        self.__name__ = getattr(function, "__name__", "algorithm")
        code = getattr(inspect.unwrap(function), "__code__", None)
        if code is None:
            problem = f"@algorithm stands above {type(function).__name__} {self.__name__}, which is no Python function"
            raise AlgorithmError(place_of(sys._getframe(1)), problem, "write a function of a")
        self.file = code.co_filename
        self.place = f"{name_of(self.file)}:{code.co_firstlineno}"
        named = options.collective
        self.collective = named if named == CUSTOM else collective_name(str(named), self.place)
        barrier = self.collective == "barrier"
        self._refuse(barrier, "a barrier moves no chunks", 'use build("dissemination", "barrier", ranks)')
        parameters = inspect.signature(function).parameters
        for name in _RESERVED:
            problem = f"its parameter {name} is an option of every algorithm"
            self._refuse(name in parameters, problem, "take a.n, a.chunks or a.root, or another name")

    def __repr__(self) -> str:
        return f"Definition({self.__name__}: {self.collective}, {self.place})"

    def __call__(self, *args: object, **parameters: object) -> Algorithm:
        """Run the function, make one trace per rank of its steps, and verify them."""
        ranks, chunks = self._options.ranks, self._options.chunks
        fixed = "chunks" not in parameters and None not in (ranks, chunks) and not callable(chunks)
        stated: dict[str, Any] = {key: parameters.pop(key) for key in _RESERVED if key in parameters}
        if args and isinstance(args[0], str):
            kind = args[0] if args[0] == CUSTOM else collective_name(args[0], self.place)
            args = args[1:]
            self._refuse(kind != self.collective, f"is made for {self.collective}, not for {kind}", "name another")
        self._refuse(len(args) > 2, f"takes ranks and chunks, not {len(args)} values", "name the others")
        options = replace(self._options, **stated | dict(zip(("ranks", "chunks"), args, strict=False)))
        self._refuse(
            fixed and len(args) < 2 and options.ranks != ranks,
            f"is written for {ranks} ranks and {chunks} chunks, and is asked for {options.ranks} ranks",
            f"say how many chunks, e.g. {self.__name__}(RANKS, CHUNKS)",
        )
        run = self._run(options)
        try:
            result = self._asked(self.function, Machine(run), **parameters)
        finally:
            run.open = False
        if inspect.isgenerator(result) or inspect.iscoroutine(result):
            result.close()
            problem = f"{self.__name__} yields or awaits, so it has not run"
            raise AlgorithmError(self.place, problem, "write a plain function")
        if run.failed is not None:
            raise run.failed
        algorithm = run.finish(options.name or self.__name__, options.protocol)
        return checked(algorithm, self.place) if options.verify else algorithm

    def _refuse(self, wrong: object, problem: str, remedy: str) -> None:
        if wrong:
            raise AlgorithmError(self.place, problem, remedy)

    def _asked(self, function: Callable, *given: object, **named: object) -> Any:
        """The result of a user's function; an exception is reported at its line."""
        try:
            return function(*given, **named)
        except AstraError:
            raise
        except Exception as error:
            text = " ".join(str(error).split())
            problem = f"{type(error).__name__}: {text}" if text else type(error).__name__
            raise AlgorithmError(place_in(error.__traceback__) or self.place, problem, "") from error

    def _run(self, options: AlgorithmOptions) -> Run:
        place, collective = self.place, self.collective
        stated, size, cut = options.contract, options.ranks, options.chunks
        if isinstance(stated, Contract):
            size = stated.ranks if size is None else size
            cut = stated.chunks if cut is None else cut
        self._refuse(size is None, "has no number of ranks", f"write {self.__name__}(8), or ranks=8 above it")
        ranks = _number(size, "ranks", place, 2**16)
        if callable(cut):
            cut = self._asked(cut, ranks)
        chunks = _number(ranks if cut is None else cut, "chunks", place, 2**20)
        contract = self._asked(stated, ranks, chunks) if callable(stated) else stated
        if contract is not None:
            named = collective != CUSTOM
            self._refuse(named, f"{collective} has a contract already", "drop contract, or the collective")
            foreign = not isinstance(contract, Contract)
            self._refuse(foreign, f"contract is a {type(contract).__name__}", "give a Contract")
            problem = (
                f"its contract is of {contract.ranks} ranks and {contract.chunks} chunks, not of {ranks} and {chunks}"
            )
            self._refuse((contract.ranks, contract.chunks) != (ranks, chunks), problem, "make both alike")
        promise, root = promise_of(collective), options.root
        problem = f"{chunks} chunks do not divide among {ranks} ranks"
        self._refuse(promise.sharded and chunks % ranks, problem, f"take a multiple of {ranks} chunks")
        if promise.rooted:
            outside = type(root) is not int or not 0 <= root < ranks
            self._refuse(outside, f"root {root!r} is not one of {ranks} ranks", f"write 0 to {ranks - 1}")
        else:
            self._refuse(root != 0, f"{collective} takes no root", "drop the root")
        in_place = collective not in ("all_to_all", CUSTOM) if options.in_place is None else bool(options.in_place)
        scratch = options.scratch
        for key, size in (scratch or {}).items():
            _number(size, f"scratch {key!r}", place, MAX_SCRATCH)
        rooted = root if promise.rooted else None
        return Run(self.file, place, collective, ranks, chunks, rooted, in_place, contract, scratch)


def _number(value: Any, noun: str, place: str, most: int) -> int:
    try:
        number = 0 if isinstance(value, bool) else whole(value)
    except TypeError:
        number = 0
    if not 1 <= number <= most:
        raise AlgorithmError(place, f"{noun} is {value!r}", f"write a whole number, 1 to {most}")
    return number
