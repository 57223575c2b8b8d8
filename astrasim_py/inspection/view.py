"""The page that plays stored points."""

import os
from collections.abc import Mapping, Sequence

import numpy as np

from astrasim_py.core.errors import AstraError, UsageError
from astrasim_py.core.point_names import PointName
from astrasim_py.core.records import Records
from astrasim_py.engine.simulation import plan_for
from astrasim_py.inspection.point_choice import point_named, points_named, worst_of
from astrasim_py.inspection.stored_results import at_level, point_of, records_of
from astrasim_py.preparation.prepare import prepare
from astrasim_py.report.page import packed, page_data, page_html
from astrasim_py.report.training import trainings_lines
from astrasim_py.results.stored_points import StoredPoint
from astrasim_py.runs import astra_sim_point
from astrasim_py.scenario.expand import Point
from astrasim_py.system.plan import Plan

#: Points that one page can show side by side.
MOST_RUNS = 2


def view_page(
    names: Sequence[PointName], out: str | os.PathLike, notes: list[str], ranks: Sequence[int] | None = None
) -> bytes:
    """The page of one or two stored points; see `chosen_points`. `notes`: gets what a person should know. `ranks`: that
    have a row in the Gantt chart, ascending. Raises UsageError: a point has no such rank.
    """
    chosen, _ = chosen_points(names, out, notes)
    ready = [at_level(point, "messages", notes) for point in chosen]
    title = ready[0].manifest.scenario
    return page_html(title, [packed(run_data(point, ranks)) for point in ready])


def chosen_points(
    names: Sequence[PointName], out: str | os.PathLike = "results", notes: list[str] | None = None
) -> tuple[list[StoredPoint], tuple[StoredPoint, ...]]:
    """One or two stored points, and all of the scenario of the first. `names`: one for each. `out`: folder of all
    results. Of a single name without values the point farthest from its bound; `notes` gets which it is. Raises
    UsageError: there is no such point, or more than one.
    """
    if len(names) > MOST_RUNS:
        raise UsageError(str(names[0]), f"{len(names)} points are asked for", f"name {MOST_RUNS} at most")
    points = points_named(names[0].name, out)
    if len(names) == 1 and not names[0].values:
        worst = worst_of(points)
        if len(points) > 1 and notes is not None:
            notes.append(f"{len(points)} points; the one farthest from its bound is shown: {worst.manifest.point}")
        return [worst], points
    return [point_named(name, out) for name in names], points


def run_data(stored: StoredPoint, ranks: Sequence[int] | None = None) -> dict:
    """What the page needs of a stored point of level ``messages``. `ranks`: see `view_page`."""
    last = len(stored.summary.npu_of) - 1
    if ranks and ranks[-1] > last:
        raise UsageError("--ranks", f"{stored.manifest.point} has no rank {ranks[-1]}", f"name ranks from 0 to {last}")
    records = records_of(stored)
    longer = stored.summary.hop_latency_ps
    point = _made_from(stored)
    data = page_data(
        stored.manifest.point,
        records,
        stored.table("vertex"),
        stored.table("edge"),
        stored.summary.npu_of,
        _chunks(point, records),
        longer,
        stored.summary.cut_links,
        ranks,
    )
    return data | {"trainings": trainings_lines([stored.row])}


def _made_from(stored: StoredPoint) -> Point | None:
    """The point of a scenario that was stored; None where there is none."""
    try:
        return None if astra_sim_point.is_ours(stored.manifest) else point_of(stored)
    except AstraError:
        return None


def _chunks(point: Point | None, records: Records) -> Mapping[str, np.ndarray] | None:
    """The chunks of every message, from the algorithms of the point; None where they cannot be made again."""
    try:
        return message_chunks(plan_for(prepare(point).problem), records) if point else None
    except AstraError:  # a file has gone: the page does without chunks
        return None


def message_chunks(plan: Plan, records: Records) -> dict[str, np.ndarray]:
    """``first``, ``count`` and ``of``: the chunks that each message carries, of how many; -1 where unknown."""
    message, node = records.message, records.node["node"]
    result = {name: np.full(message.height, -1, dtype=np.int64) for name in ("first", "count", "of")}
    called, src = message["instance"], message["src"]
    sent = node[message["send_node"]].astype(np.uint64)
    order = np.lexsort((src, called))
    # Where the messages of another instance or of another rank of it begin.
    cuts = np.flatnonzero(np.diff(called[order]) | np.diff(src[order])) + 1
    instances = dict(enumerate(plan.instances))
    columns: dict[tuple[int, int], tuple[np.ndarray, np.ndarray, np.ndarray]] = {}
    for rows in np.split(order, cuts) if len(order) else ():
        instance, rank = instances.get(int(called[rows[0]])), int(src[rows[0]])
        algorithm = instance.algorithm if instance else None
        if instance is None or algorithm is None or not algorithm.chunks or rank not in instance.members:
            continue
        key = id(algorithm), instance.members.index(rank)
        if key not in columns:
            trace = algorithm.traces[key[1]]
            by_id = np.argsort(trace.node_id, kind="stable")
            first, count = trace.column("msg_chunk_idx"), trace.column("msg_chunk_cnt")
            columns[key] = trace.node_id[by_id], first[by_id], count[by_id]
        ids, first, count = columns[key]
        i = np.searchsorted(ids, sent[rows])
        result["first"][rows], result["count"][rows], result["of"][rows] = first[i], count[i], algorithm.chunks
    return result
