"""What a wait knows of signals that several thread blocks count in one counter."""

from __future__ import annotations

import numpy as np
import pytest

from astrasim_py.mscclpp.blocks import Counter, Signal


@pytest.mark.parametrize(
    ("count", "known"), [(0, [0, 0, 0]), (1, [1, 0, 1]), (2, [1, 0, 1]), (3, [2, 0, 1]), (4, [3, 1, 1])]
)
def test_a_wait_knows_what_all_signals_have_in_common(count, known):
    """Three signals of one block and one of another: a wait for one of them comes after one of the two first ones."""
    counter = Counter(sources={0, 1}, waiters={2})
    for told in ([1, 0, 1], [2, 0, 1], [3, 0, 1]):
        counter.add(Signal(0, np.array(told)))
    counter.add(Signal(1, np.array([1, 1, 1])))
    told = [signal.told for signal in counter.sure(count, acquires=True)]
    assert np.maximum.reduce([np.zeros(3, dtype=int), *told]).tolist() == known
