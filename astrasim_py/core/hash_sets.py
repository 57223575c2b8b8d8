"""The order in which the hash set of GNU's C++ library, ``std::unordered_set<uint64_t>``, gives its elements.

All elements are in one list. The first of a bucket goes to the front of the list, any other to the front of its bucket.
A full set gets more buckets: its elements are inserted anew, in the order of the list.
"""

import numpy as np

#: Numbers of buckets of a growing set; each is also the number of elements that fill it.
BUCKETS = np.array(
    [
        13, 29, 59, 127, 257, 541, 1109, 2357, 5087, 10273, 20753, 42043, 85229, 172933, 351061, 712697, 1447153,
        2938679, 5967347, 12117689, 24607243, 49969847, 101473717,
    ]
)  # fmt: skip
BUCKETS.setflags(write=False)


def iteration_order(values: np.ndarray, buckets: int = int(BUCKETS[0])) -> tuple[np.ndarray, int]:
    """The order of the elements of a set.

    Parameters
    ----------
    values : uint64[n]
        Distinct values, in the order of insertion into an empty set.
    buckets : int
        Buckets of the empty set: a set keeps what it once had.

    Returns
    -------
    int64[n], int
        Indices into `values` in the order of the set, and its buckets from now on.
    """
    values, order = np.asarray(values, dtype=np.uint64), np.arange(0)
    while True:
        order = np.concatenate([order, np.arange(len(order), min(len(values), buckets))])
        _, first, bucket = np.unique(values[order] % np.uint64(buckets), return_index=True, return_inverse=True)
        order = order[np.lexsort((-np.arange(len(order)), -first[bucket]))]
        if len(order) == len(values):
            return order, buckets
        buckets = int(BUCKETS[np.searchsorted(BUCKETS, buckets, side="right")])
