"""Files of a set of traces, one for each rank: ``PREFIX.<rank>.et``, or ``.et.gz``."""

import os
import re
from collections.abc import Sequence
from itertools import islice
from pathlib import Path

from astrasim_py.core.errors import TraceError
from astrasim_py.core.files import named


def set_files(prefix: str) -> dict[int, list[str]]:
    """Names of the files ``PREFIX.<rank>.et`` and ``PREFIX.<rank>.et.gz``, by rank; raises as `os.listdir` does."""
    folder, base = os.path.split(prefix)
    pattern = re.compile(re.escape(base) + r"\.(0|[1-9][0-9]{0,9})\.et(\.gz)?")
    names_of: dict[int, list[str]] = {}
    for name in sorted(os.listdir(folder or ".")):
        if match := pattern.fullmatch(name):
            names_of.setdefault(int(match[1]), []).append(name)
    return dict(sorted(names_of.items()))


def find_prefix(prefix: str | os.PathLike, ranks: int | None = None) -> list[Path]:
    """Files of a set `PREFIX.<rank>.et` (or `.et.gz`), by rank.

    `prefix`: path and name up to the rank. `ranks`: number of ranks there must be; by default as many as there are.
    Raises TraceError: no file; ranks that are missing, appear twice or are too many: all are listed.
    """
    place = os.fspath(prefix)
    folder, base = os.path.split(place)
    try:
        names_of = set_files(os.fspath(named(place, TraceError)))
    except OSError as error:
        raise TraceError(
            place, f"cannot list {folder or '.'}: {error.strerror}", "name PREFIX of PREFIX.0.et"
        ) from None
    if not names_of:
        hint = f"did you mean {place[: -len('.0.et')]}?" if place.endswith(".0.et") else "check the path"
        raise TraceError(place, f"there is no {base}.0.et", f"name the part before .<rank>.et; {hint}")
    twice = [" and ".join(names) for names in names_of.values() if len(names) > 1]
    if twice:
        raise TraceError(place, f"ranks appear twice: {listed(twice)}", "keep one file of each rank")
    count = max(names_of) + 1 if ranks is None else ranks
    # There may be very many; a few more than are listed will do.
    missing = list(islice((rank for rank in range(count) if rank not in names_of), 9))
    extra = [rank for rank in names_of if rank >= count]
    problems = [f"missing {listed([f'{base}.{rank}.et' for rank in missing])}"] if missing else []
    problems += [f"beyond the last rank {listed([names_of[rank][0] for rank in extra])}"] if extra else []
    if problems:
        remedy = "provide one file for every rank" if missing else "remove them or simulate more ranks"
        raise TraceError(place, f"ranks 0..{count - 1} are needed: {'; '.join(problems)}", remedy)
    return [Path(folder) / names_of[rank][0] for rank in range(count)]


def listed(names: Sequence[str]) -> str:
    return ", ".join(names[:8]) + (", …" if len(names) > 8 else "")
