"""Some points of a scenario, before they are run: those that names mean, or a share of them."""

import re
from collections.abc import Sequence

from astrasim_py.core.errors import UsageError
from astrasim_py.core.point_names import PointName
from astrasim_py.report.chosen_rows import ambiguous, chosen_places
from astrasim_py.runs.task import row_of
from astrasim_py.scenario.expand import Point

#: Status of a point of which nothing is known.
_UNKNOWN = ""


def chosen_numbers(points: Sequence[Point], names: Sequence[PointName]) -> tuple[int, ...]:
    """Numbers of the points that some names mean, in the order of the sweep; without names all. Raises UsageError: one
    has a key or value that there is not.
    """
    if not names:
        return tuple(range(len(points)))
    rows = [row_of(point, _UNKNOWN) for point in points]
    return tuple(sorted({place for name in names for place in chosen_places(rows, name.values, name.name)}))


def chosen_point(points: Sequence[Point], name: PointName) -> Point:
    """The only point that a name means. Raises UsageError: there are several, or none."""
    numbers = chosen_numbers(points, [name])
    if len(numbers) > 1:
        raise ambiguous([row_of(points[number], _UNKNOWN) for number in numbers], name)
    return points[numbers[0]]


def parse_share(text: str) -> tuple[int, int]:
    """Read ``--share i/n``: the i-th of n shares, 1 ≤ i ≤ n.

    >>> parse_share("2/8")
    (2, 8)
    """
    match = re.fullmatch(r"(\d{1,18})/(\d{1,18})", text)
    if match is None or not 1 <= int(match[1]) <= int(match[2]):
        raise UsageError("--share", f'"{text}" is not a share i/n with 1 ≤ i ≤ n', "write e.g. --share 1/4")
    return int(match[1]), int(match[2])
