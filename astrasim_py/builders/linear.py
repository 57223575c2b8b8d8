"""Linear algorithms: the root serves one rank after the other."""

from __future__ import annotations

from astrasim_py.builders.direct import star
from astrasim_py.builders.draft import check_nodes, finish
from astrasim_py.program.algorithm import Algorithm

COLLECTIVES = ("broadcast", "scatter", "gather", "reduce")


def build(collective: str, ranks: int, *, root: int | None = None) -> Algorithm:
    """Linear algorithm: n-1 messages between the root and the others, in the order root+1, root+2, …

    In broadcast and scatter a send waits until the one before is delivered; in gather and reduce all ranks send
    at once and the root takes their messages in order.

    Parameters
    ----------
    collective : str
        broadcast, scatter, gather or reduce.
    """
    check_nodes(f"linear {collective} over {ranks} ranks", 3 * ranks)
    return finish(star(collective, ranks, root, window=1, in_order=True), "linear", collective, root=root)
