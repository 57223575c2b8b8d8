"""Rows of points as a pandas DataFrame: numbers to compute with, exact integers beside them."""

from collections.abc import Sequence
from decimal import Decimal

from astrasim_py.core.extras import optional_module
from astrasim_py.results.model import ROW_KEYS, Row
from astrasim_py.results.values import ps_of

_COUNTS = ("size_bytes", "npus", "messages", "message_hops")
_FLOATS = ("efficiency", "cpu_s")


def rows_dataframe(rows: Sequence[Row]):
    """A pandas DataFrame of rows of points.

    A column for each swept key, numbers where all its values are; one that a column of results is called like is
    ``sweep.KEY``, and left out where both are equal. Times are float ns (``time_ns``), with the exact picoseconds as
    integers beside them (``time_ps``). What a point does not have is missing (NaN, ``pandas.NA``).
    """
    pandas = optional_module("pandas", "notebook", "to_dataframe")

    columns: dict[str, object] = {}
    swept = list(dict.fromkeys(key for row in rows for key in row.sweep))
    for key in ROW_KEYS:
        values = [row.get(key) for row in rows]
        if key == "sweep":
            for name in swept:
                texts = [row.sweep.get(name) for row in rows]
                if name not in ROW_KEYS:
                    columns[name] = _numbers(texts)
                elif any(text != str(row.get(name)) for text, row in zip(texts, rows, strict=True)):
                    columns[f"sweep.{name}"] = texts
        elif key.endswith("_ns"):
            columns[key] = pandas.array([_float(value) for value in values], dtype="float64")
            columns[f"{key[:-3]}_ps"] = pandas.array([ps_of(value) for value in values], dtype="Int64")
        elif key in _COUNTS:
            columns[key] = pandas.array(values, dtype="Int64")
        elif key in _FLOATS or key.endswith("_GBps"):
            columns[key] = pandas.array([_float(value) for value in values], dtype="float64")
        else:
            columns[key] = values
    return pandas.DataFrame(columns)


def _float(value: Decimal | float | None) -> float:
    return float("nan") if value is None else float(value)


def _numbers(texts: Sequence[str | None]) -> Sequence:
    """Whole numbers, or floats, where every text is one; else the texts."""
    present = [text for text in texts if text is not None]
    for kind in (int, float) if len(present) == len(texts) else ():
        try:
            return [kind(text) for text in present]
        except (TypeError, ValueError):
            continue
    return texts
