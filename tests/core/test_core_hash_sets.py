"""Orders of hash sets: the list of GNU's C++ library, element by element."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.core.hash_sets import BUCKETS, iteration_order


class ListedSet:
    """The set as the library has it: one list, and by bucket the place before its first element."""

    def __init__(self, buckets):
        self.buckets, self.list = buckets, []

    def insert(self, value):
        if len(self.list) == self.buckets:
            again, self.list = self.list, []
            self.buckets = int(BUCKETS[self.buckets < BUCKETS][0])
            for old in again:
                self.place(old)
        self.place(value)

    def place(self, value):
        same = [i for i, other in enumerate(self.list) if other % self.buckets == value % self.buckets]
        self.list.insert(same[0] if same else 0, value)


@given(st.lists(st.integers(0, 2**64 - 1) | st.integers(0, 60), unique=True, max_size=140), st.sampled_from((13, 29)))
def test_it_is_the_order_of_the_list(values, buckets):
    listed = ListedSet(buckets)
    for value in values:
        listed.insert(value)
    order, left = iteration_order(np.array(values, dtype=np.uint64), buckets)
    assert [values[i] for i in order] == listed.list and left == listed.buckets


@pytest.mark.parametrize(
    ("inserted", "listed"),
    [  # As g++ 12 printed them.
        ([5, 18, 3, 31], [3, 31, 18, 5]),
        (range(14), [13, *range(13)]),
        (range(0, 26, 2), [24, 22, 20, 18, 16, 14, 12, 10, 8, 6, 4, 2, 0]),
    ],
)
def test_recorded_sets(inserted, listed):
    values = np.array(list(inserted), dtype=np.uint64)
    assert values[iteration_order(values)[0]].tolist() == listed
