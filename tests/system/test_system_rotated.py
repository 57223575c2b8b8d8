"""Plans of rotated slices: they say what the plans of the same algorithms, written out, say."""

from dataclasses import replace
from fractions import Fraction

import numpy as np
import pytest

from astrasim_py.builders.registry import build
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.traces import Traces
from astrasim_py.system import routes
from astrasim_py.system.lowering import make_plan
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.programs import RECV, SEND
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology import shapes
from astrasim_py.workload.items import Collective
from astrasim_py.workload.microbenchmarks import generate

CASES = [
    ("ring", "all_reduce", 5, {}),
    ("ring", "all_gather", 6, {"bidirectional": True, "chunks": 2}),
    ("ring", "all_to_all", 4, {}),
    ("direct", "all_to_all", 7, {"window": 2}),
    ("halving_doubling", "all_reduce", 8, {}),
    ("dissemination", "barrier", 6, {}),
    ("hierarchical", "all_reduce", 12, {"dims": [2, 3, 2], "chunks": 2}),
    ("hierarchical", "all_to_all", 8, {"dims": [4, 2]}),
]


class Table:
    def __init__(self, algorithm):
        self.algorithm = algorithm

    def select(self, *_, **__):
        return self.algorithm


def problem_of(algorithm, size, *, order=1, **more):
    ranks = algorithm.ranks
    job = Job(
        workload=generate([Collective(type=algorithm.collective, size=size)], ranks),
        placement=tuple(range(ranks))[::order],
        algorithms=Table(algorithm),
        compute_speed=more.pop("speed", {}),
    )
    topology = shapes.Ring(npus=ranks, bandwidth=Fraction(10**9), latency=1000).build()
    return Problem(topology=topology, jobs=(job,), **more)


def written_out(algorithm):
    return replace(algorithm, traces=tuple(algorithm.traces))


@pytest.mark.parametrize("case", CASES, ids=str)
@pytest.mark.parametrize("size", [2**14 * 3 * 5 * 7, 10**6 + 3])
def test_a_rotated_slice_says_what_its_programs_say(case, size):
    name, collective, ranks, options = case
    size = 0 if collective == "barrier" else size
    algorithm = build(name, collective, ranks, **options)
    plan = make_plan(problem_of(algorithm, size, order=-1))
    other = make_plan(problem_of(written_out(algorithm), size, order=-1))
    part, plain = plan.calls[0], other.calls[0]
    assert part.rotation == algorithm.rotation and plain.rotation is None
    assert part.base is part.programs[0]
    kind = part.base.structure.kind
    message = (kind == SEND) | (kind == RECV)
    matrix = part.programs.nbytes_matrix(range(ranks))
    for position, (ours, theirs) in enumerate(zip(part.programs, plain.programs, strict=True)):
        assert ours.structure.key == theirs.structure.key
        for column in ("peer", "tag", "duration", "node_id", "rows", "slot", "instance"):
            assert np.array_equal(getattr(ours, column), getattr(theirs, column)), column
        assert np.array_equal(ours.nbytes[message], theirs.nbytes[message])
        assert np.array_equal(part.programs[position].nbytes, matrix[position])
        assert np.array_equal(matrix[position][message], theirs.nbytes[message])
        if part.uniform_bytes:
            assert np.array_equal(part.programs[position].nbytes, part.base.nbytes)
    sent = {int(b) for program in plain.programs for b in program.nbytes[kind == SEND]}
    assert sent <= set(plan.sizes)
    assert plan.messages == other.messages
    assert plan.row_count == other.row_count
    for index in (-1, 0):
        members = range(plan.ranks) if index < 0 else part.members
        rows = [plan.first_row(rank, index) for rank in members]
        assert plan.first_rows(index).tolist() == other.first_rows(index).tolist() == rows
    assert np.array_equal(plan.route_pairs, other.route_pairs)
    assert np.array_equal(plan.route_links, other.route_links)


@pytest.mark.parametrize("case", CASES, ids=str)
def test_messages_meet_where_they_meet_written_out(case):
    name, collective, ranks, options = case
    algorithm = build(name, collective, ranks, **options)
    ours = make_plan(problem_of(algorithm, 2**20)).calls[0]
    theirs = make_plan(problem_of(written_out(algorithm), 2**20)).calls[0]
    pairs = {}
    for part in (ours, theirs):
        ends = {}
        for position, program in enumerate(part.programs):
            meet = part.matching[position]
            for node in np.flatnonzero(program.peer >= 0).tolist():
                ends.setdefault(int(meet[node]), []).append((position, node))
        pairs[part] = sorted(map(tuple, ends.values()))
    assert pairs[ours] == pairs[theirs]
    kind = ours.base.structure.kind
    partner = dict(zip(ours.matching.at.tolist(), ours.matching.partners(0).tolist(), strict=True))
    assert sorted(partner) == np.flatnonzero((kind == SEND) | (kind == RECV)).tolist()
    for node, other in partner.items():
        if other >= 0:
            assert partner[other] == node and kind[other] != kind[node]


def doubled(tags: bool):
    """Every rank sends two messages to the next one, of one tag or of two."""
    algorithm = build("ring", "barrier", 3)
    base = algorithm.traces[0]
    tag = base.column("comm_tag") if tags else np.where(base.column("comm_tag") >= 0, 0, base.column("comm_tag"))
    return replace(algorithm, traces=Traces.of_rotation(algorithm.traces.rotated.on(base.replace(comm_tag=tag))))


def test_several_messages_of_one_tag_share_a_channel():
    part = make_plan(problem_of(doubled(tags=False), 0)).calls[0]
    kind = part.base.structure.kind
    assert part.matching.channels == 1 and (part.matching.partner == -1).all()
    meets = [part.matching[p] for p in range(3)]
    assert all((meet < 0).all() for meet in meets)
    for position in range(3):
        program = part.programs[position]
        assert set(meets[position][kind == SEND]) == set(meets[(position + 1) % 3][kind == RECV])
        assert set(program.peer[kind == SEND]) == {(position + 1) % 3}
    assert len({int(meet[0]) for meet in meets} | {int(meet[1]) for meet in meets}) == 3
    assert make_plan(problem_of(doubled(tags=True), 0)).calls[0].matching.channels == 0


def test_a_send_without_its_receive_is_refused_alike():
    algorithm = build("ring", "barrier", 3)
    base = algorithm.traces[0]
    first = np.flatnonzero(base.column("comm_dst") >= 0)[0]
    tag = base.column("comm_tag").copy()
    tag[first] = 77
    broken = replace(algorithm, traces=Traces.of_rotation(algorithm.traces.rotated.on(base.replace(comm_tag=tag))))
    for each in (broken, written_out(broken)):
        with pytest.raises(AlgorithmError, match=r"rank 0 sends [01] messages to rank 1 with tag .*give every send"):
            make_plan(problem_of(each, 0))


def test_what_members_do_not_share_is_written_out():
    ring = build("ring", "all_reduce", 4)
    gamma = Semantics(gamma=Fraction(1, 10**9))
    slow = {0: Fraction(1, 2)}
    assert make_plan(problem_of(ring, 4096, semantics=gamma)).calls[0].rotation
    assert make_plan(problem_of(ring, 4097)).calls[0].rotation
    assert make_plan(problem_of(ring, 4096, speed=slow)).calls[0].rotation
    assert make_plan(problem_of(ring, 4097, semantics=gamma)).calls[0].rotation is None
    assert make_plan(problem_of(ring, 4096, semantics=gamma, speed=slow)).calls[0].rotation is None


def test_a_table_of_routes_that_would_be_too_large_is_not_made(monkeypatch):
    algorithm = build("direct", "all_to_all", 8)
    whole = make_plan(problem_of(algorithm, 4096))
    monkeypatch.setattr(routes, "MAX_ROUTE_LINKS", 50)
    plan = make_plan(problem_of(algorithm, 4096))
    assert plan.computed_routes and not whole.computed_routes
    assert len(plan.route_pairs) == 0 and len(whole.routes) == 56
    assert {pair: plan.routes[pair] for pair in whole.routes} == whole.routes
