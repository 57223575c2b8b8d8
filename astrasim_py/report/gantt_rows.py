"""What a Gantt chart shows: bars with names, ranks with equal bars as one row, and which rows there is room for."""

import re
from collections.abc import Mapping, Sequence
from itertools import chain, zip_longest
from typing import NamedTuple

import numpy as np

from astrasim_py.core.records import Table, called_instances
from astrasim_py.report.intervals import coverage, lanes

COMPUTE, COMMUNICATION, INSIDE = range(3)
#: Names of bars without one of their own.
SEND, RECEIVE, MEMORY, REDUCTION = "send", "receive (waiting)", "remote memory", "compute in an algorithm"
#: Lanes of a part of a row; what more there is at one time is drawn in the last one. Receives lie behind all of them.
LANES, BEHIND = 4, 4
#: Bars of a chart are drawn singly up to this number; of more, in so many bins of time.
MOST_BARS, BINS = 20_000, 1500
#: What a tile has behind the name of its computation.
TILE = re.compile(r" tile (\d+/\d+)$")
#: Words of a name that say its phase of a training step.
_PHASES = {"fwd": "forward", "forward": "forward", "bwd": "backward", "backward": "backward", "wgrad": "backward"}
_PHASES |= {"optimizer": "optimizer"}


class Bars(NamedTuple):
    """Columns of equal length. `part`: COMPUTE, COMMUNICATION, or INSIDE a collective. `name`: index into `names`.
    `kind`: what has no name of its own is called so; index into `names`. `lane`: of bars at one time, BEHIND
    for receives.
    """

    rank: np.ndarray
    part: np.ndarray
    lane: np.ndarray
    start: np.ndarray  # ps
    end: np.ndarray  # ps
    name: np.ndarray
    kind: np.ndarray
    names: tuple[str, ...]

    def take(self, rows: np.ndarray) -> "Bars":
        rank, part, lane, start, end, name, kind = (column[rows] for column in self[:7])
        return Bars(rank, part, lane, start, end, name, kind, self.names)


def joined_bars(parts: Sequence[Bars], names: tuple[str, ...]) -> Bars:
    """The bars of several charts as one; their names and kinds are indices into `names`."""
    columns = zip(*(bars[:7] for bars in parts), strict=True)
    rank, part, lane, start, end, name, kind = map(np.concatenate, columns)
    return Bars(rank, part, lane, start, end, name, kind, names)


def bars_of(node: Table, collective: Table, ranks: int, switches: int = 0) -> Bars:
    """The bars of ranks, and what switches compute, by rank and start. Switches are the ranks that follow."""
    instance, start, end = (node[name] for name in ("instance", "start", "end"))
    kind_code, kinds = node.coded("kind")
    name_code, texts = node.coded("name")
    names: dict[str, int] = {}

    def number(text: str) -> int:
        return names.setdefault(text, len(names))

    outer = instance < 0
    inside = ~outer & (kind_code == (kinds.index("compute") if "compute" in kinds else -1))
    drawn = ("compute", "memory", "software", "collective", "send", "recv")
    shows = np.array([kind in drawn for kind in kinds], dtype=bool)
    chosen = np.flatnonzero((start >= 0) & (end > start) & ((node["rank"] < ranks) & shows[kind_code] & outer | inside))
    chosen = chosen[node["rank"][chosen] < ranks + switches]
    chosen = chosen[np.lexsort((end[chosen], start[chosen], node["rank"][chosen]))]
    types = dict(zip(collective["instance"].tolist(), collective["type"].tolist(), strict=True))
    plain = {"compute": "compute", "memory": MEMORY, "send": SEND, "recv": RECEIVE, "collective": "collective"}
    of_kind = np.array([number(plain.get(kind, kind)) for kind in kinds], dtype=np.int64)
    kind = of_kind[kind_code[chosen]]
    calls = np.flatnonzero(kind_code[chosen] == (kinds.index("collective") if "collective" in kinds else -1))
    called = called_instances(node)[chosen[calls]]
    instances, index = np.unique(called, return_inverse=True)
    of_call = [number(str(types.get(i, "collective")).replace("_", "-")) for i in instances.tolist()]
    kind[calls] = np.array(of_call, dtype=np.int64)[index.reshape(-1)] if len(calls) else kind[calls]
    kind[inside[chosen]] = number(REDUCTION)
    codes, index = np.unique(name_code[chosen], return_inverse=True)
    shown = [texts[code].decode() if isinstance(texts[code], bytes) else str(texts[code]) for code in codes.tolist()]
    numbers = np.array([number(text) if text else -1 for text in shown], dtype=np.int64)[index.reshape(-1)]
    part = np.full(len(chosen), COMMUNICATION)
    part[np.isin(kind, [names.get(text, -1) for text in ("compute", MEMORY, "software")])] = COMPUTE
    part[inside[chosen]] = INSIDE
    single = np.isin(kind, [names.get(text, -1) for text in (SEND, RECEIVE, MEMORY, "software", REDUCTION)])
    rank = node["rank"][chosen]
    _, group = np.unique(rank * 3 + part, return_inverse=True)
    lane = np.full(len(chosen), BEHIND)
    front = np.flatnonzero(kind != names.get(RECEIVE, -1))
    lane[front] = np.minimum(lanes(group.reshape(-1)[front], start[chosen[front]], end[chosen[front]]), LANES - 1)
    name = np.where((numbers >= 0) & ~single, numbers, kind)
    return Bars(rank, part, lane, start[chosen], end[chosen], name, kind, tuple(names))


class GanttRow(NamedTuple):
    """Ranks whose bars are equal, and the bars of the first of them."""

    ranks: tuple[int, ...]
    bars: slice


def rows_of(bars: Bars, ranks: Sequence[int], jobs: Mapping[int, str]) -> list[GanttRow]:
    """Rows in order of their first ranks; ranks of one job share a row if they have the same bars at the same times."""
    first, last = (np.searchsorted(bars.rank, ranks, side=side).tolist() for side in ("left", "right"))
    columns = (bars.part, bars.lane, bars.start, bars.end, bars.name)
    rows: dict[tuple, tuple[list[int], slice]] = {}
    for rank, low, high in zip(ranks, first, last, strict=True):
        key = (jobs.get(rank), *(column[low:high].tobytes() for column in columns))
        rows.setdefault(key, ([], slice(low, high)))[0].append(rank)
    return [GanttRow(tuple(members), span) for members, span in rows.values()]


def fitting(rows: Sequence[GanttRow], bars: Bars, limit: int) -> list[GanttRow]:
    """At most `most` rows: the first ones, and the one that ends last."""
    if len(rows) <= limit:
        return list(rows)
    ends = [int(bars.end[row.bars].max(initial=0)) for row in rows]
    last = ends.index(max(ends))
    return [*rows[:limit]] if last < limit else [*rows[: limit - 1], rows[last]]


def phase_of(name: str) -> str:
    """The phase of a training step that a name of a computation says; empty if none.

    >>> phase_of("layer 3 bwd 1"), phase_of("gemm")
    ('backward', '')
    """
    return next((_PHASES[word] for word in re.split(r"[^A-Za-z]+", name.lower()) if word in _PHASES), "")


def grouped(bars: Bars, part: int, limit: int) -> tuple[np.ndarray, list[str]]:
    """A group for each bar of a part, and the names of the groups, at most `most`: single names; else names without
    their numbers; else phases of training, or what they are; else the longest ones and ``other``.
    """
    members = bars.part == part
    codes, index = np.unique(bars.name[members], return_inverse=True)
    # Tiles have the colour of the computation that they are of.
    full_names = [TILE.sub("", bars.names[number]) for number in codes.tolist()]
    kinds, of_kind = np.unique(bars.kind[members], return_inverse=True)
    length = (bars.end - bars.start)[members].astype(float)
    tries = [full_names, _without_numbers(full_names)]
    if part == COMPUTE:
        tries.append([phase_of(name) or without for name, without in zip(full_names, tries[1], strict=True)])
    for names in tries:
        if len(set(names)) <= limit:
            break
    else:
        if part != COMPUTE:
            names, index = [bars.names[number] for number in kinds.tolist()], of_kind
    names = list(names)
    spent = dict.fromkeys(names, 0.0)
    for name, ps in zip(names, np.bincount(index.reshape(-1), weights=length, minlength=len(names)), strict=True):
        spent[name] += ps
    shown = list(spent) if len(spent) <= limit else sorted(spent, key=lambda name: -spent[name])[: limit - 1]
    rest = f"other {'compute' if part == COMPUTE else 'communication'}"
    labels = [*shown, rest] if len(spent) > limit else shown
    group = np.full(len(bars.rank), -1)
    of_name = [labels.index(name) if name in shown else len(labels) - 1 for name in names]
    group[members] = np.array(of_name, dtype=np.int64)[index.reshape(-1)] if len(names) else group[members]
    return group, labels


_NUMBER = re.compile(r"\d{1,9}")


def _without_numbers(names: Sequence[str]) -> list[str]:
    """Names that differ by numbers alone as one.

    >>> _without_numbers(["b1", "b2", "b4", "layer 0 fwd 1", "layer 1 fwd 2"])
    ['b1–4', 'b1–4', 'b1–4', 'layer * fwd *', 'layer * fwd *']
    """
    numbers: dict[str, list[list[int]]] = {}
    for name in names:
        numbers.setdefault(_NUMBER.sub("#", name), []).append([int(n) for n in _NUMBER.findall(name)])
    called: dict[str, str] = {}
    for name in names:
        pattern = _NUMBER.sub("#", name)
        values = [(min(v), max(v)) for v in zip(*numbers[pattern], strict=True)]
        single = sum(low < high for low, high in values) == 1
        texts = [str(low) if low == high else f"{low}–{high}" if single else "*" for low, high in values]
        parts = zip_longest(_NUMBER.split(name), texts, fillvalue="")
        called.setdefault(pattern, "".join(chain.from_iterable(parts)))
    return [called[_NUMBER.sub("#", name)] for name in names]


def thinned(place: np.ndarray, group: np.ndarray, start: np.ndarray, end: np.ndarray, until: int) -> tuple:
    """Bars for drawing: place, group, start, end. Of very many, in every bin of time the group that fills it most."""
    if len(start) <= MOST_BARS:
        return place, group, start, end
    places, groups = int(place.max()) + 1, int(group.max()) + 1
    filled = coverage(place * groups + group, start, end, places * groups, BINS, until)
    filled = filled.reshape(places, groups, BINS) / (until / BINS)
    best = np.where(filled.sum(axis=1) >= 0.5, filled.argmax(axis=1), -1)
    border = np.ones((places, BINS + 1), dtype=bool)
    border[:, 1:-1] = best[:, 1:] != best[:, :-1]
    row, bin_ = np.nonzero(border)
    opens = bin_ < BINS
    row, first = row[opens], bin_[opens]
    last = bin_[np.flatnonzero(opens) + 1]
    group = best[row, first]
    shown = group >= 0
    edges = np.linspace(0, until, BINS + 1).round().astype(np.int64)
    return row[shown], group[shown], edges[first[shown]], edges[last[shown]]
