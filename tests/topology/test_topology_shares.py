"""Links at shares of their rates: what a topology with other rates is, and who is near."""

from fractions import Fraction

import pytest

import astrasim_py as ap
from astrasim_py.topology.shares import with_shares


def test_a_machine_at_shares_is_the_machine_with_those_rates():
    nominal = ap.build_topology(preset="dgx_h100", nodes=2)
    fewer = ap.build_topology(
        preset="dgx_h100", nodes=2, nvlink_bandwidth="337.5 GB/s", nic_bandwidth=f"{50 * 0.85:g} GB/s"
    )
    achieved = with_shares(nominal, 0.75, 0.85)
    assert achieved.digest() == fewer.digest()
    assert [dim.bandwidth for dim in achieved.dims] == [dim.bandwidth for dim in fewer.dims]


def test_whole_shares_are_the_topology_itself():
    nominal = ap.build_topology(preset="dgx_h100", nodes=2)
    assert with_shares(nominal, 1.0, 1.0) is nominal


@pytest.mark.parametrize(("near", "far"), [(0.5, 1.0), (0.25, 0.5)])
def test_rates_that_become_equal_are_one_class(near, far):
    uneven = ap.build_topology(shape="torus", dims=[4, 2], bandwidth=["100 GB/s", "50 GB/s"], latency="1 us")
    achieved = with_shares(uneven, near, far)
    rates = [achieved.bandwidths[code] for code in achieved.bandwidth_class.tolist()]
    expected = [
        uneven.bandwidths[code] * Fraction(near if uneven.bandwidths[code] == 100 * 10**9 else far)
        for code in uneven.bandwidth_class.tolist()
    ]
    assert rates == expected
    assert list(achieved.bandwidths) == sorted(set(expected))
