"""Algorithms that other tools wrote are read in both dialects."""

from __future__ import annotations

import pytest

from astrasim_py.program.files import read_algorithm
from astrasim_py.verification.verifier import verify


@pytest.mark.parametrize(
    ("name", "collective", "sent"),
    [
        # Per rank of eight: 2(n-1) eighths in a ring or by halving and doubling, n-1 when gathering.
        ("allgather_rd", "all_gather", 7),
        ("allreduce_rdh", "all_reduce", 14),
        ("u_allreduce_ring", "all_reduce", 14),
    ],
)
def test_symbolic_files_scale_and_state_their_collective(golden, name, collective, sent):
    a = read_algorithm(golden / "chakra_samples" / "collectiveapi" / name)
    assert (a.collective, a.ranks, a.symbolic, a.has_cells) == (collective, 8, True, False)
    for rank, trace in enumerate(a.traces):
        assert int(a.message_bytes(rank, 8000)[trace.type == 5].sum()) == sent * 1000
    assert verify(a).correct is None


def test_absolute_files_stand_unless_their_size_is_given(golden):
    prefix = golden / "astra_sim" / "custom" / "custom_ring_65536_8" / "custom_ring_65536"
    a = read_algorithm(prefix, "all_reduce")
    assert (a.symbolic, a.scales) == (False, False)
    assert set(a.message_bytes(3, 10**6)[a.traces[3].type == 5].tolist()) == {8192}
    b = read_algorithm(prefix, "all_reduce", made_for=65536)
    assert b.scales
    assert set(b.message_bytes(3, 2**20)[b.traces[3].type == 5].tolist()) == {2**17}
    assert b.digest() != a.digest()
