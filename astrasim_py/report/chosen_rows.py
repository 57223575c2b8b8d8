"""Which rows of a scenario some swept values mean, as in ``NAME@size=1 MiB,topology=ring``."""

from collections.abc import Mapping, Sequence

from astrasim_py.core.errors import UsageError
from astrasim_py.core.fields import did_you_mean
from astrasim_py.core.point_names import PointName, shell_word
from astrasim_py.core.row_conditions import cell_equals, nearest
from astrasim_py.report.row_selection import cell_of
from astrasim_py.results.model import Row

#: Columns by which points are chosen although they are not swept.
_COLUMNS = ("topology", "size", "algorithm", "npus", "network_model")


def chosen_places(rows: Sequence[Row], values: Mapping[str, Sequence[str]], name: str) -> list[int]:
    """Places of the rows that have one of the values of each key. `values`: a value with commas is one, else several. A
    key may be the last part of a swept one. `name`: of the scenario, for errors. Raises UsageError: no such key, or no
    row has such a value.
    """
    places = list(range(len(rows)))
    for key, texts in values.items():
        axis = _axis(rows, key, name)
        left = [rows[place] for place in places]
        is_whole = all(any(_has(row, axis, text) for row in left) for text in texts)
        parts = texts if is_whole else [part.strip() for text in texts for part in text.split(",")]
        for part in parts:
            if not any(_has(row, axis, part) for row in left):
                raise _no_value(left, axis, part, name, len(left) < len(rows))
        places = [place for place in places if any(_has(rows[place], axis, part) for part in parts)]
    return places


def telling_apart(rows: Sequence[Row]) -> list[str]:
    """Swept keys in which rows differ."""
    return [key for key in rows[0].sweep if len({str(row.sweep.get(key)) for row in rows}) > 1]


def ambiguous(rows: Sequence[Row], name: PointName, wanted: str = "one point") -> UsageError:
    """The error where a name means several rows. `wanted`: what it should mean."""
    keys = telling_apart(rows)
    problem = f"means {len(rows)} points, not {wanted}"
    if not keys:
        return UsageError(str(name), problem, "name the folder of one")
    example = PointName(name.name, {**name.values, **{key: (rows[0].sweep[key],) for key in keys}})
    return UsageError(str(name), problem, f"they differ in {', '.join(keys)}: write e.g. {shell_word(str(example))}")


def _axis(rows: Sequence[Row], key: str, name: str) -> str:
    """The swept key, or the column, that a key means."""
    swept = list(dict.fromkeys(axis for row in rows for axis in row.sweep))
    full = [axis for axis in swept if axis == key] or [axis for axis in swept if axis.rpartition(".")[2] == key]
    if len(full) == 1:
        return full[0]
    if full:
        raise UsageError(f"{name}@{key}", "is the end of several swept keys", f"write {' or '.join(full)}")
    if key in _COLUMNS and any(row.text_of(key) is not None for row in rows):
        return key
    there = f"swept are {', '.join(swept)}" if swept else "it has one point: write its name alone"
    guess = did_you_mean(key, swept)
    raise UsageError(f"{name}@{key}", "is not swept", f"{guess} {there}" if guess.startswith("did") else there)


def _has(row: Row, key: str, text: str) -> bool:
    cell = cell_of(row, key)
    return row.text_of(key) == text or (cell is not None and cell_equals(cell, text))


def _no_value(rows: Sequence[Row], key: str, text: str, name: str, fewer: bool) -> UsageError:
    """The error where no row has a value. `fewer`: the rows are those that have the values before it."""
    texts = [value for row in rows if (value := row.text_of(key)) is not None]
    problem = f'no point{" with the values before it" if fewer else ""} has "{text}"'
    return UsageError(f"{name}@{key}", problem, nearest(text, texts))
