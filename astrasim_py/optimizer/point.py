"""Which point of a scenario is optimized."""

import os
from collections.abc import Mapping, Sequence

from astrasim_py.core.errors import UsageError
from astrasim_py.core.point_names import PointName
from astrasim_py.runs.chosen_points import chosen_point
from astrasim_py.scenario.expand import Point, expand
from astrasim_py.scenario.load import LoadedScenario
from astrasim_py.scenario.workload_models import AstraSimWorkload


def point_of(scenario: LoadedScenario, values_by_key: Mapping[str, Sequence[str]]) -> Point:
    """The only point of a scenario that has one of the values of each swept key. Raises UsageError: there are several,
    several runs of it, or none."""
    points = expand(scenario)
    if scenario.repeat > 1:
        raise UsageError(str(scenario.path), f"has {len(points)} runs, and one is optimized", "drop repeat")
    values = {key: tuple(texts) for key, texts in values_by_key.items()}
    point = chosen_point(points, PointName(os.fspath(scenario.path), values))
    if isinstance(point.spec.workload, AstraSimWorkload):
        problem = "ASTRA-sim's files say how collectives run, so that nothing is left to choose"
        raise UsageError(point.place("workload"), problem, "write {trace: PREFIX} and a topology")
    return point
