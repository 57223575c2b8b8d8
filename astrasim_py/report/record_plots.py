"""What figures of the records of single points share."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from astrasim_py.core.records import Categorical, Table
from astrasim_py.topology.layout import spread

#: Maximum points in a figure of records.
PANELS = 9
#: Panels share their scale if the longest run is at most so many times as long as the shortest.
_ALIKE = 10


@dataclass(frozen=True, slots=True, kw_only=True)
class Panel:
    """The input of a figure of records for one point. `tables`: ``link``, ``vertex`` and ``edge`` (links), ``node`` and
    ``collective`` (gantt), ``hop``, ``message`` and ``edge`` (utilisation). `jobs`: rank → its job, of several jobs.
    `npu_of`: rank → NPU; the rank itself where empty. `switches`: names of those that took part in collectives, whose
    ranks follow the others. `cut`: ends of links that had failed before. `failed`: links that failed at some time.
    `shares`: messages share the bandwidth of links.
    """

    title: str
    makespan: int  # ps
    tables: Mapping[str, Table] = field(default_factory=dict)
    jobs: Mapping[int, str] = field(default_factory=dict)
    npu_of: Sequence[int] = ()
    switches: Sequence[str] = ()
    cut: Sequence[tuple[int, int]] = ()
    failed: Sequence[int] = ()
    shares: bool = False


def same_scale(times: Sequence[int]) -> tuple[list[int], bool]:
    """Where the time axis of each panel ends, and whether they all end alike: they do unless runs differ widely."""
    longest = max(times)
    alike = longest <= _ALIKE * max(min(times), 1)
    return [max(longest if alike else time, 1) for time in times], alike


def places(vertex: Table, edge: Table) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Positions of vertices; an irregular topology in tiers by distance from the NPUs."""
    switch = vertex["kind"] == "switch"
    x, y = (np.asarray(vertex[name], dtype=float).copy() for name in ("x", "y"))
    return *spread(x, y, switch, edge["src"], edge["dst"]), switch


def joined(tables: Sequence[Mapping]) -> Table:
    """Tables of several panels as one."""
    columns: dict = {}
    for name in tables[0]:
        parts = [table[name] for table in tables]
        if isinstance(parts[0], Categorical):
            columns[name] = Categorical.of([text for part in parts for text in part.texts.tolist()])
        else:
            columns[name] = np.concatenate(parts)
    return Table(columns)


def percent(value: float, _: object) -> str:
    return f"{100 * value:.0f} %"


def texts(column: np.ndarray) -> list[str]:
    """Names, which may be stored as bytes."""
    return [name.decode() if isinstance(name, bytes) else str(name) for name in column.tolist()]
