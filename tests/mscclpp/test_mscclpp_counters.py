"""What a wait knows of signals of several thread blocks, and a reader of a packet of others."""

from __future__ import annotations

import numpy as np
import pytest

from astrasim_py.mscclpp.blocks import Counter, Signal
from astrasim_py.mscclpp.one_sided import OneSided
from astrasim_py.mscclpp.verify import verify_plan


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


def test_a_packet_does_not_order_those_to_other_ranks():
    """Rank 2 sends one packet to each; rank 0, which has read its own, sends into the cell of the other one."""
    program = OneSided("all_gather", 3, protocol="LL")
    first, reader, last = (program.block(rank) for rank in (0, 1, 2))
    last.put(("o", 2), 0, ("s", 0))
    last.put(("o", 2), 1, ("s", 0))
    first.copy(("s", 0), ("o", 2))
    reader.copy(("s", 0), ("o", 2))
    assert not verify_plan(program.plan()).facts.races
    first.put(("o", 2), 1, ("s", 0))
    races = verify_plan(program.plan()).facts.races
    assert {(race.rank, race.against_rank) for race in races if race.kind == "write after write"} == {(0, 2)}
