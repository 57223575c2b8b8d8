"""Names of stored points on the command line."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from astrasim_py.core.point_names import PointName

NAME = "NAME[@key=value,…]"
#: What help says of a name.
NAME_HELP = (
    "a scenario that was run, its file, a folder of results or of a point; behind @ as many swept values as tell the "
    "point from the others"
)


def point_names(words: Sequence[str], out: str) -> list[PointName]:
    """The points that words name; `out`: folder of all results. Raises UsageError."""
    from astrasim_py.inspection import point_choice

    return point_choice.point_names(words, out)


def names_of_files(words: Sequence[str]) -> list[PointName]:
    """Files, or prefixes of files; of names with values of points behind ``@`` the scenarios' files. Raises
    UsageError.
    """
    from astrasim_py.core.point_names import SIGN, PointName

    if not any(SIGN in word for word in words):
        return [PointName(word) for word in words]
    from astrasim_py.inspection.point_choice import scenario_file

    return [scenario_file(name) if name.values else name for name in point_names(words, "results")]


def one_scenario(word: str) -> PointName:
    """The scenario file, and values of one point, that a word names. Raises UsageError."""
    from astrasim_py.inspection import point_choice

    return point_choice.scenario_file(point_choice.point_name(word))
