"""Rows of points for figures."""

from __future__ import annotations

from astrasim_py.report.arranged_rows import FigureRow
from astrasim_py.results.model import Breakdown


def figure_row(*, compute_ns=None, other_ns=None, **values) -> FigureRow:
    """The row of a finished point, with the parts of its time where they are given."""
    exposed = values.get("exposed_comm_ns")
    parts = None if compute_ns is None else {"compute_ns": compute_ns, "exposed_comm_ns": exposed, "other_ns": other_ns}
    breakdown = parts and Breakdown(rank=0, **parts)
    return FigureRow(**{"scenario": "s", "point": "p", "status": "done"} | values, breakdown=breakdown)
