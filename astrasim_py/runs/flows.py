"""Completion times of messages of open-loop traffic, by size: ``flows.csv``."""

import csv
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import numpy as np

from astrasim_py.core.choices import FLUID
from astrasim_py.core.files import remove_files, write_file
from astrasim_py.core.records import Records
from astrasim_py.core.units import format_size, transfer_ps
from astrasim_py.results.csv_io import csv_rows
from astrasim_py.results.repeats import nearest_rank
from astrasim_py.results.stored_points import StoredPoint
from astrasim_py.results.values import ns_number, rounded
from astrasim_py.system.plan import Plan

FLOWS = "flows.csv"
#: Most sizes that have a row each; more are in classes of these percentiles.
_SIZES, _PERCENTILES = 6, (0, 50, 90, 99, 100)
_MODELS = ("cut_through", "store_and_forward", FLUID, "analytical")


class FlowRow(NamedTuple):
    """Messages of a class of sizes; a row of ``flows.csv``. Times are from when a message is ready to its end."""

    sizes: str
    messages: int
    least_bytes: int
    most_bytes: int
    mean_ns: Decimal | None
    p50_ns: Decimal | None
    p99_ns: Decimal | None
    max_ns: Decimal | None
    mean_slowdown: Decimal | None
    p50_slowdown: Decimal | None
    p99_slowdown: Decimal | None


def flow_rows(plan: Plan, records: Records) -> list[FlowRow]:
    """Rows of all messages that are done, then by size. A slowdown is the time over that of the message alone on its
    route; it is empty where the network has costs beyond links. `records`: with messages.
    """
    table = records.message
    done = table["delivered"] >= 0
    nbytes, src, dst = (table[name][done] for name in ("bytes", "src", "dst"))
    took = table["delivered"][done] - table["posted"][done]
    alone = _alone(plan, src, dst, nbytes)
    rows = [_row("all", took, nbytes, alone)] if len(took) else []
    sizes = np.unique(nbytes)
    if len(sizes) == 1:
        return rows
    if len(sizes) <= _SIZES:
        classes = [(format_size(int(size)), nbytes == size) for size in sizes]
    else:
        ordered = np.sort(nbytes)
        ends = [int(nearest_rank(ordered, percent)) if percent else -1 for percent in _PERCENTILES]
        names = [f"{low} to {high} %" for low, high in pairwise(_PERCENTILES)]
        bounds = zip(names, ends, ends[1:], strict=False)
        classes = [(name, (nbytes > low) & (nbytes <= high)) for name, low, high in bounds]
    return rows + [
        _row(name, took[part], nbytes[part], None if alone is None else alone[part])
        for name, part in classes
        if part.any()
    ]


def _row(name: str, took: np.ndarray, nbytes: np.ndarray, alone: np.ndarray | None) -> FlowRow:
    slow: list[Decimal | None] = [None, None, None]
    if alone is not None:
        ratios = sorted(Fraction(a, b) for a, b in zip(took.tolist(), alone.tolist(), strict=True) if b)
        if ratios:
            at = [ratios[max(-(-len(ratios) * percent // 100) - 1, 0)] for percent in (50, 99)]
            mean = Fraction(float(np.mean([float(ratio) for ratio in ratios])))
            slow = [rounded(value) for value in (mean, *at)]
    ordered = np.sort(took)
    return FlowRow(
        name, len(took), int(nbytes.min()), int(nbytes.max()),
        ns_number(sum(took.tolist()) // len(took)), ns_number(nearest_rank(ordered, 50)),
        ns_number(nearest_rank(ordered, 99)), ns_number(int(ordered[-1])), *slow,
    )  # fmt: skip


def _alone(plan: Plan, src: np.ndarray, dst: np.ndarray, nbytes: np.ndarray) -> np.ndarray | None:
    """int64[k], ps: the time of each message where no other is in its way; None where links are not all it costs."""
    problem, topology = plan.problem, plan.problem.topology
    network = problem.network
    if network.model not in _MODELS or network.profile or network.msccl or problem.nic or topology.events:
        return None
    known: dict[tuple[int, int, int], int] = {}
    times = np.empty(len(src), dtype=np.int64)
    for i, (a, b, size) in enumerate(zip(src.tolist(), dst.tolist(), nbytes.tolist(), strict=True)):
        if (a, b, size) not in known:
            known[a, b, size] = alone_ps(plan, a, b, size)
        times[i] = known[a, b, size]
    return times


def alone_ps(plan: Plan, src: int, dst: int, nbytes: int) -> int:
    """The time of a message between two ranks that has the network to itself, as the network model has it."""
    topology, model = plan.problem.topology, plan.problem.network.model
    head = tail = 0
    for link in topology.route(plan.npu_of[src], plan.npu_of[dst]):
        transfer = transfer_ps(nbytes, topology.bandwidth(link))
        latency = int(topology.latency_ps[link])
        if model == "store_and_forward":
            tail += transfer + latency
        else:
            # The last byte leaves a link when it has come, and when the link has taken all of them.
            head, tail = head + latency, max(head + transfer, tail) + latency
    return tail


def flow_files(plan: Plan, records: Records, level: str) -> tuple[dict[str, Iterable[bytes]], Records]:
    """The file of a point, and the records of which no more than `level` is stored."""
    rows = [row._asdict() for row in flow_rows(plan, records)]
    return {FLOWS: (csv_rows(list(FlowRow._fields), rows),)}, replace(records, level=level)


def write_flows(folder: Path, points: Sequence[StoredPoint]) -> None:
    """Make ``flows.csv`` of a scenario from those of its points; without any, it goes. Raises OutputError."""
    rows = [*_flows_of(points)]
    if rows:
        keys = dict.fromkeys(key for row in rows for key in row)
        write_file(folder / FLOWS, csv_rows(list(keys), rows), make_folder=True)
    else:
        remove_files(folder, FLOWS)


def _flows_of(points: Sequence[StoredPoint]) -> Iterator[dict[str, str]]:
    """Rows of the points that have such a file, with their swept values."""
    for point in points:
        if FLOWS in point.manifest.files:
            with open(point.folder / FLOWS, encoding="utf-8", newline="") as file:
                for row in csv.DictReader(file):
                    yield {"point": point.manifest.point, **point.row.sweep, **row}
