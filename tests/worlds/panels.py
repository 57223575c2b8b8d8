"""Panels of figures of records."""

from __future__ import annotations

import numpy as np

from astrasim_py.core.records import Table
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.report.record_plots import Panel
from astrasim_py.runs.summary import edge_table, vertex_table


def panel_of(problem, title: str = "", level: str = "messages") -> Panel:
    """The records of a problem, as the figures take them."""
    plan = plan_for(problem)
    records = simulate(plan, level=level)
    tables = {"vertex": vertex_table(problem.topology), "edge": edge_table(problem.topology, records.link["link"])}
    jobs = dict(enumerate(map(plan.job_name, range(plan.npu_ranks))))
    return Panel(
        title=title,
        makespan=records.makespan,
        tables={**tables, **records.tables()},
        jobs=jobs if any(jobs.values()) else {},
        npu_of=plan.npu_of[: plan.npu_ranks],
        switches=plan.switches,
        shares=problem.network.model == "fluid",
    )


def link_panel(topology, title: str = "a $x$ panel") -> Panel:
    """Every second link used, from not at all to nearly always."""
    used = np.arange(0, topology.links, 2)
    link = Table({"link": used, "busy": used * 7 % 90, "bytes": used + 1})
    return Panel(
        title=title,
        makespan=100,
        tables={"link": link, "vertex": vertex_table(topology), "edge": edge_table(topology, used)},
    )


def gantt_panel(ranks: int = 3, shift: int = 0, **more) -> Panel:
    """Compute, then an all-reduce with a send inside, then a receive that never ends; a rank is `shift` later than the
    one before.
    """
    late = np.repeat(np.arange(ranks) * shift, 4)
    end = np.tile([10, 30, 20, -1], ranks)
    node = Table(
        {
            "rank": np.repeat(np.arange(ranks), 4),
            "node": np.tile(np.arange(4), ranks),
            "instance": np.tile([-1, -1, 0, -1], ranks),
            "kind": ["compute", "collective", "send", "recv"] * ranks,
            "name": [""] * (4 * ranks),
            "start": np.tile([0, 10, 10, 30], ranks) + late,
            "end": np.where(end < 0, -1, end + late),
            "released_by": np.concatenate([[-1, 4 * r, 4 * r + 1, -1] for r in range(ranks)]),
            "ended_by": np.full(4 * ranks, -1),
        }
    )
    collective = Table({"instance": [0], "type": ["all_reduce"]})
    makespan = 30 + shift * (ranks - 1)
    return Panel(title="run", makespan=makespan, tables={"node": node, "collective": collective}, **more)
