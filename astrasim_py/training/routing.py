"""Unequal routing of tokens in layers with experts: rows that each rank sends to each other.

Numbers are drawn from a generator whose stream never changes, so a seed means the same everywhere.
"""

import json
from dataclasses import dataclass

import numpy as np

from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.files import read_regular
from astrasim_py.training.layers import up
from astrasim_py.training.strategy import Layout

_REMEDY = "write a JSON list with the share of each expert, or a list of such lists, one for each layer with experts"


@dataclass(frozen=True)
class Routes:
    """Rows of tokens that ranks of an expert group exchange in each layer."""

    sent: int  # rows that each rank sends, those to itself included
    tables: dict[int, np.ndarray]  # by layer int64[microbatches, x, x]: from, to

    def rows(self, layer: int) -> np.ndarray:
        """int64[microbatches, x, x]: rows from each rank to each other."""
        return self.tables[layer]

    def share(self, value: int, layer: int, place: int) -> np.ndarray:
        """int64[microbatches]: a rank's part of a value that is proportional to the rows that it sends.

        All ranks of the group have as much of it as if their rows were equal.
        """
        ends = np.cumsum(self.tables[layer].sum(axis=1), axis=1)
        begins = ends - self.tables[layer].sum(axis=1)
        per_row, rest = divmod(value, self.sent)
        first, last = (rows[:, place] * per_row + rows[:, place] * rest // self.sent for rows in (begins, ends))
        return last - first


def routes_of(layout: Layout[int]) -> Routes | None:
    """Routes of a layout; None where all experts get equal shares.

    ``random`` draws the share of each expert anew in every layer, micro-batch and rank, exponentially distributed; a
    file states shares. Rows are whole: the largest remainders are rounded up.

    Raises ScenarioError: a file that is not of that form, or of another number of experts or layers.
    """
    kind, model, x = layout.routing.kind, layout.model, layout.ep
    if kind == "balanced" or not model.experts or x == 1:
        return None
    sent = int(up(layout.tokens * model.topk, layout.tp))
    layers = range(model.dense_layers, model.layers + model.mtp)
    shape = len(layers), layout.microbatches, x
    if kind == "random":
        raw = np.random.PCG64(layout.routing.seed).random_raw(int(np.prod(shape)) * model.experts)
        weights = -np.log((raw >> 11).astype(np.float64) * 2.0**-53 + 2.0**-54).reshape(*shape, model.experts)
    else:
        shares = _read(layout.routing.file, model.experts, len(layers))
        weights = np.broadcast_to(shares[:, None, None, :], (*shape, model.experts))
    held = int(up(model.experts, x))  # experts of a rank
    padded = np.zeros((*shape, held * x))
    padded[..., : model.experts] = weights
    return Routes(sent, dict(zip(layers, _rounded(padded.reshape(*shape, x, held).sum(axis=-1), sent), strict=True)))


def _rounded(weights: np.ndarray, total: int) -> np.ndarray:
    """Whole numbers in proportion to weights along the last axis, of this sum; largest remainders are rounded up."""
    exact = weights / weights.sum(axis=-1, keepdims=True) * total
    rows = np.floor(exact).astype(np.int64)
    missing = total - rows.sum(axis=-1, keepdims=True)
    rank = np.argsort(np.argsort(-(exact - rows), axis=-1, kind="stable"), axis=-1, kind="stable")
    return rows + (rank < missing)


def _read(path: str | None, experts: int, layers: int) -> np.ndarray:
    """float64[layers, experts]: shares that a file states."""
    if path is None:
        raise ScenarioError("training.routing", "kind file without a file", "write file: shares.json")
    data = read_regular(path, 64 * 2**20, ScenarioError, what="a JSON file", remedy=_REMEDY)
    try:
        shares = np.array(json.loads(data))
        if shares.dtype.kind not in "iuf":
            raise ValueError("its values are not numbers")
    except (ValueError, RecursionError) as error:
        raise ScenarioError(path, f"is no list of shares: {error}", _REMEDY) from None
    if shares.shape not in ((experts,), (layers, experts)):
        shape = " x ".join(map(str, shares.shape))
        raise ScenarioError(path, f"has {shape} shares for {layers} layers of {experts} experts", _REMEDY)
    shares = np.broadcast_to(shares, (layers, experts))
    if not np.isfinite(shares).all() or (shares < 0).any() or (shares.sum(axis=1) <= 0).any():
        raise ScenarioError(path, "has a share that is negative or no number, or only zeros", _REMEDY)
    return shares
