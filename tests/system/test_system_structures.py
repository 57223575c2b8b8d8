"""Structures of programs: ranks share one if their nodes and edges are equal, and only then."""

import astrasim_py as ap
from astrasim_py.builders.draft import Draft
from astrasim_py.system.rank_programs import RankPrograms


def test_ranks_that_wait_for_as_much_but_at_other_nodes_have_structures_of_their_own() -> None:
    draft = Draft(3, 0)
    first = draft.join([0, 1, 2], counter=0)
    waits = {"count_of": 0, "count_k": 1}
    draft.join([0, 2], after=(first[[0, 2]],))
    draft.join([1], **waits)
    draft.join([0, 2], **waits)
    draft.join([1], after=(first[[1]],))
    ring = ap.build_topology(shape="ring", npus=3, bandwidth="1 GB/s", latency="1 us")
    structures, counters = RankPrograms(ap.collective("all_reduce", "1 KiB", ring)).skeletons(draft.program())
    assert [structure.need.tolist() for structure in structures] == [[0, 1, 1]] * 3
    assert [structure.succ.tolist() for structure in structures] == [[1], [2], [1]]
    assert structures[0] is structures[2]
    assert [own.of.tolist() for own in counters] == [[-1, -1, 0], [-1, 0, -1], [-1, -1, 0]]
