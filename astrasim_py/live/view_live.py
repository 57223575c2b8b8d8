"""The page of a point over a live engine."""

import os
from collections.abc import Mapping, Sequence
from typing import Any

from astrasim_py.core.errors import UsageError
from astrasim_py.core.point_names import PointName
from astrasim_py.inspection.view import chosen_points
from astrasim_py.live.live import LivePoint
from astrasim_py.live.page_server import PageServer
from astrasim_py.live.worker import Worker
from astrasim_py.report.page import page_html


class LivePage:
    """A page whose first run can be changed. A second point stands beside it for comparison, else the run unchanged.

    Close it after use. `notes`: gets what a person should know. Other parameters and errors as for `chosen_points` and
    `LivePoint`; raises UsageError: the port is taken, or the point cannot be run any more.
    """

    def __init__(self, names: Sequence[PointName], out: str | os.PathLike, port: int, notes: list[str]) -> None:
        chosen, points = chosen_points(names, out, notes)
        self._point, *beside = (LivePoint(stored, points) for stored in chosen)
        self._server = PageServer(port, self._answer)
        unchanged = self._point.run({})
        self._worker = Worker(unchanged)
        try:
            runs = [self._worker.first(), *(self._worker.run(point.run({})) for point in beside)]
            wrong = [answer["error"] for answer in runs if "error" in answer]
            if wrong:
                raise UsageError(str(names[0]), f"cannot be run: {wrong[0]}")
        except BaseException:
            self.close()
            raise
        for stored, run in zip(chosen, runs, strict=True):
            if run["time_ps"] != stored.summary.makespan_ps:
                name = stored.manifest.point
                notes.append(f"{name}: what it was computed from has changed since; the page shows what it gives now")
        offers = {**self._point.offers(), "path": self._server.path, "yaml": unchanged.text}
        self._server.page = page_html(self._point.point.scenario, [answer["run"] for answer in runs], offers)

    @property
    def url(self) -> str:
        return self._server.url

    def serve(self) -> None:
        """Serve until an interrupt."""
        self._server.serve_forever()

    def close(self) -> None:
        self._server.server_close()
        self._worker.close()

    def _answer(self, change: Mapping[str, Any]) -> Mapping[str, Any]:
        if change == {"stop": True}:
            self._worker.stop()
            return {"stopped": True}
        run = self._point.run(change)
        return {**self._worker.run(run), "yaml": run.text}
