"""Comparison of two engines: the differences between their records."""

from collections.abc import Callable
from dataclasses import fields, replace
from typing import Any

import numpy as np

from astrasim_py.core.choices import BOTH, COMPILED, FOLDED, SIMPY
from astrasim_py.core.errors import AstraError, FoldError, InternalError
from astrasim_py.core.records import Outcome, Records, Table

#: Fields that may differ: the engine's name and its CPU time.
_OWN = ("engine", "cpu_s")


def differences(a: Records, b: Records) -> list[str]:
    """List the differences between two runs of one problem, a line each; of a column only the first."""
    names = [field.name for field in fields(Records) if field.name not in _OWN]
    return [line for name in names for line in _values(name, getattr(a, name), getattr(b, name))]


def _values(name: str, a: Any, b: Any) -> list[str]:
    if isinstance(a, np.ndarray):
        return _columns(f"{name} of rank", a, b)
    if isinstance(a, Outcome):
        pairs = [(field.name, getattr(a, field.name), getattr(b, field.name)) for field in fields(Outcome)]
        return [line for each, mine, theirs in pairs for line in _values(f"{each} of the outcome", mine, theirs)]
    if not isinstance(a, Table):
        if a != b and name.startswith("waiting"):
            lengths = f"{len(a)} entries", f"{len(b)} entries"
            a, b = next((pair for pair in zip(a, b, strict=False) if pair[0] != pair[1]), lengths)
        return [] if a == b else [f"{name}: {a} and {b}"]
    if list(a) != list(b):
        return [f"columns of table {name}: {', '.join(a)} and {', '.join(b)}"]
    if a.height != b.height:
        return [f"rows of table {name}: {a.height} and {b.height}"]
    return [line for column in a for line in _columns(f"{column} of {name} row", a[column], b[column])]


def _columns(what: str, a: np.ndarray, b: np.ndarray) -> list[str]:
    if len(a) != len(b):
        return [f"{what}s: {len(a)} and {len(b)} of them"]
    differing = np.flatnonzero(np.asarray(a != b, dtype=bool))
    if not len(differing):
        return []
    at = int(differing[0])
    more = f" (and {len(differing) - 1} more)" if len(differing) > 1 else ""
    return [f"{what} {at}: {a[at]} and {b[at]}{more}"]


#: What is said of a run whose times or bytes do not fit.
BEYOND = "its times or its bytes on a link go beyond 2^63 - 1 (of picoseconds: 106 days)"


def run_both(run: Callable[[str], Records], place: str, names: tuple[str, str] = (SIMPY, COMPILED)) -> Records:
    """Run two engines by their names; returns the records of the first, with the CPU seconds of both.

    Raises AstraError: both engines raise it, or ranks cannot be folded. Raises InternalError: their records differ.
    """
    first, second = (_outcome(run, name) for name in names)
    if isinstance(first, Records) and isinstance(second, Records):
        found = differences(first, second)
        if not found:
            folded = FOLDED if second.engine.endswith(FOLDED) else ""
            return replace(first, engine=BOTH + folded, cpu_s=first.cpu_s + second.cpu_s)
        more = f"; {len(found) - 1} more columns differ" if len(found) > 1 else ""
        raise InternalError(f"{place}: {_shown(names[0])} and {_shown(names[1])} differ: {found[0]}{more}")
    # The compiled engine computes when a node ends, also where the run reaches a limit before.
    limited = any(isinstance(each, Records) and each.outcome.status == "limit" for each in (first, second))
    for each in (first, second):
        if isinstance(each, FoldError) or (limited and isinstance(each, AstraError) and each.problem == BEYOND):
            raise each
    if isinstance(first, AstraError) and isinstance(second, AstraError) and str(first) == str(second):
        raise first
    told = [f"ends as {r.outcome.status}" if isinstance(r, Records) else f"says: {r}" for r in (first, second)]
    raise InternalError(f"{place}: {_shown(names[0])} {told[0]}, and {_shown(names[1])} {told[1]}")


def _shown(name: str) -> str:
    return {SIMPY: "the SimPy engine", COMPILED: "the compiled engine", FOLDED: "the folded run"}[name]


def _outcome(run: Callable[[str], Records], name: str) -> Records | AstraError:
    try:
        return run(name)
    except AstraError as error:
        return error
