"""Measured cases: a CSV of runs of ASTRA-sim, each with its input files and what it printed."""

import os
import shlex
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal, InvalidOperation
from fractions import Fraction
from pathlib import Path
from typing import Any

from astrasim_py.astra_sim.input_set import AWARE_MULTIDIM, BACKENDS, Arguments
from astrasim_py.core.errors import UsageError
from astrasim_py.core.fields import shown
from astrasim_py.core.table_file import read_text, table_rows

#: Columns without which a row cannot be judged, and those that may be absent; others are for the reader.
REQUIRED = (
    "set", "backend", "network", "npus", "workload", "system", "t_ns_per_npu", "exposed_comm_ns_per_npu", "outcome",
)  # fmt: skip
OPTIONAL = (
    "collective", "algorithm", "size_bytes", "splits", "finished_npus", "t_max_ns", "t_min_ns", "memory", "flags",
)  # fmt: skip
OK, UNFINISHED = "ok", "does not finish"

MAX_NPUS = 2**20


@dataclass(frozen=True, slots=True, kw_only=True)
class AstraSimCase(Arguments):
    """One measured run. `times`, `exposed`: ns per rank; empty where it did not finish."""

    workload: tuple[Path, ...]  # a file per rank
    place: str  # ``file:line`` of its row
    set: str
    label: str = ""  # what it is about, for people
    npus: int
    finishes: bool = True  # whether ASTRA-sim yielded a number
    times: tuple[int, ...] = ()
    exposed: tuple[int, ...] = ()

    @property
    def judged(self) -> bool:
        """True if a difference counts: of a backend that nobody ships it is informative."""
        return self.backend != AWARE_MULTIDIM


def read_cases(path: str | os.PathLike, sets: Sequence[str] = ()) -> list[AstraSimCase]:
    """Rows of a CSV of cases, in order. `path`: files that it names are relative to its folder. `sets`: only these; all
    where empty. Raises UsageError: ``file:line``: what is wrong.
    """
    place, title = os.fspath(path), "a CSV of cases"
    rows = table_rows(read_text(path, title), place, title, REQUIRED, OPTIONAL)
    names = dict.fromkeys(row["set"] for _, row in rows)
    for name in sets:
        if name not in names:
            raise UsageError(
                "--only", f"{place} has no set {shown(name)}", f"write one of {', '.join(names) or 'none'}"
            )
    folder = Path(path).resolve().parent
    return [_case(row, row_place, folder) for row_place, row in rows if not sets or row["set"] in sets]


def _case(row: Mapping[str, str], here: str, folder: Path) -> AstraSimCase:
    def existing(key: str, name: str) -> Path:
        path = folder / name
        if not name or not os.path.isfile(path):
            raise UsageError(f"{here}: {key}", f"there is no file {shown(name)}", f"name a file relative to {folder}")
        return path

    if not row["set"]:
        raise UsageError(f"{here}: set", "is empty", "name the group of the row")
    if row["backend"] not in BACKENDS:
        raise UsageError(
            f"{here}: backend", f"{shown(row['backend'])} is unknown", f"write one of {', '.join(BACKENDS)}"
        )
    if row["outcome"] not in (OK, UNFINISHED):
        raise UsageError(f"{here}: outcome", f"{shown(row['outcome'])} is unknown", f'write "{OK}" or "{UNFINISHED}"')
    npus = _whole(row["npus"], f"{here}: npus")
    if not 1 <= npus <= MAX_NPUS:
        raise UsageError(f"{here}: npus", f"{npus} is out of range", f"write 1 to {MAX_NPUS}")
    finishes = row["outcome"] == OK
    flags = _flags(row.get("flags", ""), f"{here}: flags")
    groups = flags.pop("groups", None)
    memory = row.get("memory", "")
    return AstraSimCase(
        place=here,
        set=row["set"],
        label=" ".join(filter(None, (Path(row["network"]).stem, row["workload"], row.get("algorithm", "")))),
        backend=row["backend"],
        network=existing("network", row["network"]),
        system=existing("system", row["system"]),
        memory=existing("memory", memory) if memory else None,
        groups=existing("flags", groups) if groups not in (None, "empty") else None,
        workload=find_workload(folder, row["workload"], npus, here),
        folder=folder,
        npus=npus,
        finishes=finishes,
        times=_per_npu(row, "t_ns_per_npu", npus, here) if finishes else (),
        exposed=_per_npu(row, "exposed_comm_ns_per_npu", npus, here) if finishes else (),
        **flags,
    )


def find_workload(folder: Path, name: str, npus: int, here: str) -> tuple[Path, ...]:
    """Files of a workload, one per rank: its own folder, else the one that serves every rank. Raises UsageError: there
    is neither.
    """
    if not name or "/" in name or "\\" in name:
        raise UsageError(f"{here}: workload", f"{shown(name)} is no name of a workload", "write the name of its files")
    for stem in (f"wl_{name}", name):
        rank_folder = folder / "workloads" / f"{stem}_{npus}npus"
        if os.path.isdir(rank_folder):
            # A missing rank is for the reader to tell: ASTRA-sim ends with an error there, too.
            return tuple(rank_folder / f"{stem}.{rank}.et" for rank in range(npus))
    # Requests to remote memory share one file, whatever the row calls them.
    for stem in (f"wl_{name}", name, *(["wl_mem"] if name.split("_")[0] == "mem" else [])):
        shared_file = folder / "workloads_same_on_every_rank" / f"{stem}.et"
        if os.path.isfile(shared_file):
            return (shared_file,) * npus
    short = shown(name)[1:-1]
    problem = f"there is neither workloads/wl_{short}_{npus}npus/ nor workloads_same_on_every_rank/{short}.et"
    raise UsageError(f"{here}: workload", problem, f"put it into {folder}")


def _flags(text: str, place: str) -> dict[str, Any]:
    """Flags of ASTRA-sim that change what is simulated; those without effect are accepted."""
    flags: dict[str, Any] = {}
    try:
        words = shlex.split(text)
    except ValueError as error:
        raise UsageError(place, f"cannot be read: {error}", "write --name=value, separated by blanks") from None
    while words:
        name, equals, value = words.pop(0).partition("=")
        where = f"{place}: {shown(name)[1:-1]}"
        if not equals:
            if not words or words[0].startswith("--"):
                raise UsageError(where, "has no value", "write --name=value")
            value = words.pop(0)
        if name not in _FLAGS:
            remedy = (
                "write --comm-group-configuration, --num-queues-per-dim, --injection-scale or --rendezvous-protocol"
            )
            raise UsageError(where, "is no flag that changes a result", remedy)
        field_name, read = _FLAGS[name]
        flags[field_name] = read(value, where)
    flags.pop("", None)
    return flags


def _scale(text: str, place: str) -> Fraction:
    try:
        value = Decimal(text)
    except InvalidOperation:
        value = Decimal("NaN")
    if not value.is_finite() or not 0 <= value <= 10**9:
        raise UsageError(place, f"{shown(text)} is no scale", "write a number, as in 2 or 0.5")
    return Fraction(value)


def _whole(text: str, place: str) -> int:
    if not (text.isascii() and text.isdigit() and len(text) < 19):
        raise UsageError(place, f"{shown(text)} is no whole number", "write digits")
    return int(text)


def _switch(text: str, place: str) -> bool:
    if text not in ("true", "false"):
        raise UsageError(place, f"{shown(text)} is neither true nor false", "write one of them")
    return text == "true"


#: Flag → field of a case (empty: without effect), and what reads its value.
_FLAGS = {
    "--comm-group-configuration": ("groups", lambda text, place: text),
    "--num-queues-per-dim": ("queues_per_dim", _whole),
    "--rendezvous-protocol": ("rendezvous", _switch),
    "--injection-scale": ("injection_scale", _scale),
    "--comm-scale": ("", _scale),
    "--compute-scale": ("", _scale),
    "--logging-configuration": ("", lambda text, place: text),
    "--logging-folder": ("", lambda text, place: text),
}


def _per_npu(row: Mapping[str, str], key: str, npus: int, here: str) -> tuple[int, ...]:
    """One value per rank; one for all where they agree."""
    values = tuple(_whole(value, f"{here}: {key}") for value in row[key].split(";"))
    if len(values) not in (1, npus):
        problem = f"{len(values)} values for {npus} NPUs"
        raise UsageError(f"{here}: {key}", problem, f"write 1 or {npus}, separated by ;")
    return values if len(values) == npus else values * npus
