"""What a run cost is told without what compiling took."""

from __future__ import annotations

import time

import astrasim_py as ap
from astrasim_py.core import compiling
from astrasim_py.engine.simulation import simulate
from astrasim_py.runs.task import Usage


def test_compiling_is_in_no_figure_of_a_run():
    ring = ap.build_topology(shape="ring", npus=2, bandwidth="1 GB/s", latency="1 ns")
    records = simulate(ap.collective("all_reduce", 8, ring), engine="simpy")
    usage = Usage()
    with compiling.clocks_stopped():  # as if something were compiled
        end = time.process_time() + 0.5
        while time.process_time() < end:
            pass
    told = usage.cost(records, ".", allow_code=True)
    assert told.wall_s >= 0 and 0 <= told.total_cpu_s < 0.4
    assert told.finished - told.started > 0.4
    assert told.allow_code and told.versions["simpy"]
