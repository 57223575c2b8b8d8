"""Explain and draw results and problems from Python."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypedDict, Unpack, overload

import numpy as np

from astrasim_py.core.choices import FLUID
from astrasim_py.core.errors import UsageError
from astrasim_py.core.files import write_file
from astrasim_py.core.records import Records, Table
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.inspection.advice import advice
from astrasim_py.inspection.explained import difference_of, explain_folder, with_values
from astrasim_py.inspection.point_choice import point_name, points_named
from astrasim_py.inspection.stored_results import plot_axes
from astrasim_py.report import plots
from astrasim_py.report.arranged_rows import FigureRow
from astrasim_py.report.cdf_plot import TABLE_OF, samples
from astrasim_py.report.difference import Difference
from astrasim_py.report.explain import Explanation
from astrasim_py.report.explain import explain as explain_records
from astrasim_py.report.record_plots import Panel
from astrasim_py.runs.summary import edge_table, hop_latency, vertex_table
from astrasim_py.runs.sweep import RunResult
from astrasim_py.scenario.plot_spec import PLOT_KINDS, PlotSpec, level_of
from astrasim_py.system.plan import Plan
from astrasim_py.system.problem import Problem

if TYPE_CHECKING:
    from matplotlib.axes import Axes


@overload
def explain(
    what: RunResult | Problem | Records | str | os.PathLike[str], point: str | Mapping[str, str] = ""
) -> Explanation: ...


@overload
def explain(
    what: RunResult | Problem | Records | str | os.PathLike[str],
    point: str | Mapping[str, str],
    other: str | Mapping[str, str],
) -> Explanation | Difference: ...


def explain(
    what: RunResult | Problem | Records | str | os.PathLike[str],
    point: str | Mapping[str, str] = "",
    other: str | Mapping[str, str] = "",
) -> Explanation | Difference:
    """Say where the time went: the critical path, exposed communication, the busiest links.

    Parameters
    ----------
    what : RunResult, path, Problem or Records
        A result, a folder of results, the name or file of a scenario with results, also of a point as in
        ``"x@size=1 MiB,topology=ring"``; a problem, which is simulated; or records of level ``messages``, of which
        links have no names.
    point : str or dict
        Swept values of a point, ``"size=1 MiB,topology=ring"`` or ``{"size": "1 MiB"}``: as many as tell it from the
        others; needed for a result of several points.
    other : str or dict
        Of a second point: what differs between the two.

    Returns
    -------
    Explanation, or Difference of two points
        Its text is what the command ``explain`` prints.

    Raises
    ------
    UsageError
        No such point, or several; records of a lower level.
    """
    if isinstance(what, Problem | Records) and (point or other):
        raise UsageError("point", f"a {type(what).__name__} has no points", "leave point out")
    if isinstance(what, Records):
        return explain_records(what)
    if not isinstance(what, Problem):
        folder = what.folder if isinstance(what, RunResult) else what
        first = explain_folder(folder, point)
        return difference_of(first, explain_folder(folder, other)) if other else first.explanation
    plan, records = _simulated(what, "messages")
    computing = plan.problem.topology.computing
    explanation = explain_records(
        records,
        edge_table(what.topology, records.link["link"]),
        hop_latency(plan),
        (),
        plan.switches,
        computing.latency_ps if computing else 0,
        what.network.qps,
    )
    finished = records.outcome.status == "done"
    return replace(
        explanation, advice=advice(what, explanation, records.message_hops + records.node.height) if finished else ""
    )


def view(
    what: RunResult | str | os.PathLike[str],
    point: str | Mapping[str, str] = "",
    other: str | Mapping[str, str] = "",
    *,
    file: str | os.PathLike[str] = "page.html",
) -> Path:
    """Write the page that plays a stored point in a browser, or two side by side.

    Parameters
    ----------
    what : RunResult or path
        A result, a folder of results, the name or file of a scenario with results, also of a point as in
        ``"x@size=1 MiB,topology=ring"``.
    point, other : str or dict
        Swept values of a point, and of a second one, as of `explain`. Without any, the point farthest from its bound.
    file : path
        What is written: HTML that needs no other file.

    Returns
    -------
    Path
        `file`.

    Raises
    ------
    UsageError
        No such point, or several.
    OutputError
        The file cannot be written.
    """
    from astrasim_py.inspection.view import view_page

    name = point_name(what.folder if isinstance(what, RunResult) else what)
    names = [with_values(name, values) for values in (point, *([other] if other else []))]
    return write_file(file, view_page(names, "results", []), make_folder=True)


class PlotKeys(TypedDict, total=False):
    """Keys of a figure beside its kind, as in a scenario's ``plots``."""

    x: str
    series: str
    facet: str
    y: str
    baseline: str | float
    of: str
    scale: str
    bound: bool
    ranks: str | Sequence[int | str]
    rows: int
    links: Sequence[str]
    count: int
    bins: int
    legend: str
    xlabel: str
    ylabel: str
    measured: Sequence[Mapping[str, str | float]]
    where: Mapping[str, str | float]
    title: str
    name: str
    width: str | float
    format: str | Sequence[str]


def plot(
    what: RunResult | Problem | Records | str | os.PathLike[str],
    kind: str | None = None,
    *,
    ax: Axes | None = None,
    **keys: Unpack[PlotKeys],
) -> Axes | np.ndarray:
    """Draw a figure with matplotlib.

    Parameters
    ----------
    what : RunResult, path, Problem or Records
        A result; a folder of results, or the name or file of a scenario with results, also of some points as in
        ``"x@size=1 MiB"``; a problem, which is simulated; or records, for ``gantt`` and ``cdf``.
    kind : str, optional
        As in a scenario's ``plots``; ``time`` of results and ``gantt`` of problems and records by default.
    ax : matplotlib Axes, optional
        To draw into; a new figure by default.
    **keys
        Of an entry of a scenario's ``plots``: ``x``, ``series``, ``facet``, ``where``, ``baseline``, ``title`` …

    Returns
    -------
    Axes or numpy.ndarray of Axes
        An array where the figure has several panels.

    Raises
    ------
    AstraError
        An unknown kind or key, several panels for one Axes, or records that are not detailed enough.
    """
    kind = kind or ("gantt" if isinstance(what, Problem | Records) else "time")
    spec = PlotSpec.model_validate({"kind": kind, **keys}).model_dump(exclude_none=True)
    if not isinstance(what, Problem | Records):
        return plot_axes(points_named(what.folder if isinstance(what, RunResult) else what), spec, ax)
    if spec.get("of") in TABLE_OF:
        return _distribution(what, spec, ax)
    if not PLOT_KINDS[kind].of_records:
        ours = [name for name, of in PLOT_KINDS.items() if of.of_records]
        remedy = f"write {', '.join(ours)}, or cdf with of: {', '.join(TABLE_OF)}"
        raise UsageError("kind", f"{kind} compares points of a result", remedy)
    records, panel = _panel(what, level_of(spec))
    if kind != "gantt" and isinstance(what, Records):
        raise UsageError("kind", "records do not say how links run", "give the problem, or write gantt")
    if kind == "gantt" and not records.node.height:
        raise UsageError("records", f'level "{records.level}" holds no nodes', 'record at level "nodes"')
    return plots.axes_of(spec, panels=[panel], ax=ax)


def _panel(source: Problem | Records, level: str) -> tuple[Records, Panel]:
    if isinstance(source, Records):
        return source, Panel(title="", makespan=source.makespan, tables=source.tables())
    plan, records = _simulated(source, level)
    names = [source.topology.vertex_name(vertex) for vertex in range(source.topology.vertices)]
    vertex = Table({**vertex_table(source.topology), "name": names})
    jobs = dict(enumerate(map(plan.job_name, range(plan.npu_ranks))))
    return records, Panel(
        title="",
        makespan=records.makespan,
        tables={"vertex": vertex, "edge": edge_table(source.topology, records.link["link"]), **records.tables()},
        jobs=jobs if len(set(jobs.values())) > 1 else {},
        npu_of=plan.npu_of[: plan.npu_ranks],
        switches=plan.switches,
        cut=source.topology.cut,
        shares=source.network.model == FLUID,
    )


def _distribution(source: Problem | Records, spec: Mapping[str, Any], ax: Axes | None) -> Axes | np.ndarray:
    records, of = _simulated(source, level_of(spec))[1] if isinstance(source, Problem) else source, spec["of"]
    if of == "messages" and not records.message.height:
        raise UsageError("records", f'level "{records.level}" holds no messages', 'record at level "messages"')
    table = {"finish": records.finish} if of == "ranks" else getattr(records, TABLE_OF[of])
    row = FigureRow(scenario="", point="", sweep={}, status=records.outcome.status, samples=samples(of, table))
    return plots.axes_of(spec, [row], ax=ax)


def _simulated(problem: Problem, level: str) -> tuple[Plan, Records]:
    plan = plan_for(problem)
    return plan, simulate(plan, level=level)
