"""Files of algorithms: one ``.et`` per rank, or one ``.npz``."""

from __future__ import annotations

import os

from astrasim_py.chakra.et_io import read_prefix
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.interchange import algorithm_from_traces, promised
from astrasim_py.program.npz import read_npz


def read_algorithm(prefix: str | os.PathLike, collective: str | None = None, **stated: object) -> Algorithm:
    """Read an algorithm: ``PREFIX.<rank>.et`` for every rank (gzip'd or not), or one ``.npz`` file.

    Parameters
    ----------
    collective : str, optional
        May be left out where the file states it.
    **stated
        ``made_for`` (full buffer, bytes, for which absolute sizes were computed), ``root``, ``in_place`` and ``name``,
        in place of what the file states.

    Raises
    ------
    TraceError
        Files that are missing or cannot be decoded.
    AlgorithmError
        An ill-formed algorithm, or one of another collective.
    """
    source = os.fspath(prefix)
    if source.endswith(".npz"):
        return promised(read_npz(source), collective, **stated)
    return algorithm_from_traces(read_prefix(source), collective, source=source, **stated)
