"""Cells: the pairs of a rank and a chunk that transfers touch, numbered."""

from typing import NamedTuple

import numpy as np

from astrasim_py.synthesis.model.network import Network

#: Pairs of rank and chunk per transfer up to which all pairs are numbered, which takes no sort.
_DENSE = 4


class Cells(NamedTuple):
    """The cell that every transfer is sent from, and the one it arrives at: int64[transfers]."""

    source: np.ndarray
    target: np.ndarray
    total: int  # number of cells


def cells_of(network: Network, arc: np.ndarray, chunk: np.ndarray, chunks: int) -> Cells:
    """The cells of transfers: arcs and chunks, int[transfers]. Memory goes by transfers, not by ranks × chunks."""
    ends = np.empty((2, len(arc)), dtype=np.int64)
    for row, rank in enumerate((network.src, network.dst)):
        ends[row] = rank[arc]
        ends[row] *= chunks
        ends[row] += chunk
    count = network.ranks * chunks
    if count > _DENSE * len(arc):
        touched, number = np.unique(ends, return_inverse=True)
        ends, count = number.reshape(ends.shape), len(touched)
    return Cells(ends[0], ends[1], count)
