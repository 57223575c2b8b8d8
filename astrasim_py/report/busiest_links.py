"""The links that were busy longest."""

from collections.abc import Mapping

import numpy as np

from astrasim_py.core.records import Table


def busiest_links(
    link: Table, names: Mapping[int, str], rates: np.ndarray | None = None, count: int = 10, *, fold: bool = True
) -> tuple[dict, ...]:
    """Rows of the links that were busy longest, of several the slowest first; by bytes where busy times were not
    recorded. `rates`: int64, bytes per second of each row; also in the result. `fold`: only the first of links whose
    figures are equal; ``alike`` says how many there are.
    """
    if not link.height:
        return ()
    rates = np.zeros(link.height, dtype=np.int64) if rates is None else rates
    busy = np.maximum(link["busy"], 0)
    keys = (-link["bytes"], rates, -busy) if busy.any() else (rates, -link["bytes"])
    order = np.lexsort((link["link"], *keys))
    figures = [link[name][order] for name in ("bytes", "busy", "messages", "queued")]
    if fold:
        _, first, alike = np.unique(np.stack([*figures, rates[order]]), axis=1, return_index=True, return_counts=True)
        shown = np.argsort(first)[:count]
        order, alike = order[first[shown]], alike[shown]
    else:
        order, alike = order[:count], np.ones(min(count, len(order)), dtype=np.int64)
    columns = {**link, "rate": rates}
    busiest = Table({**{name: np.maximum(column[order], 0) for name, column in columns.items()}, "alike": alike})
    return tuple(row | {"name": names.get(row["link"], f"{row['src']}->{row['dst']}")} for row in busiest.rows())
