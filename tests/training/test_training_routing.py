"""Unequal routing: whole rows, all of them, the same whenever it is asked, and files that are refused in one line."""

from __future__ import annotations

import json

import numpy as np
import pytest
from worlds.training import TINY, ByWork, fast, layout_of, run, whole

from astrasim_py.chakra.lint import lint
from astrasim_py.chakra.schema import NodeType
from astrasim_py.core.errors import ScenarioError
from astrasim_py.training.routing import routes_of
from astrasim_py.training.traces import training_workload

MOE = TINY | {"experts": 8, "topk": 2, "moe_ffn": 64, "dense_layers": 1}


def layout(**keys):
    return layout_of(4, model=MOE, ep=4, microbatches=3, **keys)


def test_balanced_routing_needs_no_table():
    assert routes_of(layout()) is None
    assert routes_of(layout_of(4, model=MOE, microbatches=3, routing={"kind": "random"})) is None


def test_every_row_goes_somewhere():
    routes = routes_of(layout(routing={"kind": "random", "seed": 5}))
    assert sorted(routes.tables) == [1, 2, 3]
    for table in routes.tables.values():
        assert table.shape == (3, 4, 4) and (table >= 0).all()
        assert (table.sum(axis=2) == routes.sent).all() and routes.sent == 64 * 2
    shares = sum(routes.share(1001, 2, place) for place in range(4))
    assert shares.tolist() == [4 * 1001] * 3


def test_a_seed_means_the_same_everywhere():
    drawn = routes_of(layout(routing={"kind": "random", "seed": 5})).tables[1][0]
    assert drawn.tolist() == [[5, 24, 49, 50], [64, 40, 18, 6], [22, 43, 25, 38], [5, 15, 40, 68]]
    assert not np.array_equal(drawn, routes_of(layout(routing={"kind": "random", "seed": 6})).tables[1][0])


def test_a_file_gives_the_shares(tmp_path):
    path = tmp_path / "shares.json"
    path.write_text(json.dumps([4, 0, 2, 0, 1, 0, 1, 0]))
    routes = routes_of(layout(routing={"kind": "file", "file": str(path)}))
    for table in routes.tables.values():
        assert (table == np.array([64, 32, 16, 16])).all()


def test_blocks_of_the_exchange_are_those_of_the_table():
    given = layout(routing={"kind": "random", "seed": 1})
    workload = whole(training_workload(given, ByWork()))
    table = routes_of(given).rows(2)
    for rank in range(4):
        trace = workload.traces[rank]
        for row in np.flatnonzero(trace.type == NodeType.COMM_SEND).tolist():
            if "L2.dispatch.fwd" in trace.names[row]:
                k, to = (int(trace.column(name)[row]) for name in ("micro_batch", "comm_dst"))
                assert trace.column("comm_size")[row] == table[k, rank, to] * 64 * 2
            if "L2.combine.fwd" in trace.names[row]:
                k, to = (int(trace.column(name)[row]) for name in ("micro_batch", "comm_dst"))
                assert trace.column("comm_size")[row] == table[k, to, rank] * 64 * 2
    assert lint(workload.traces, workload.groups) == []
    assert run(workload, fast(4)).makespan > run(training_workload(layout(), ByWork()), fast(4)).makespan


def test_tensor_parallel_experts_exchange_the_rows_they_have():
    keys = {"model": MOE, "tp": 2, "dp": 4, "ep": 4, "etp": 2, "microbatches": 3}
    given = layout_of(8, **keys, routing={"kind": "random", "seed": 1})
    workload = whole(training_workload(given, ByWork()))
    rows = routes_of(given).rows(2).sum(axis=1)  # by micro-batch and expert rank
    for rank, trace in enumerate(workload.traces):
        codes, names = trace.group_of()
        mine = [names.index(name) for name in names if name.startswith("etp")]
        chosen = np.isin(codes, mine) & (trace.column("layer") == 2)
        micro = trace.column("micro_batch")[chosen]
        assert len(micro) == 3 * 4  # two each way
        assert (trace.column("coll_size")[chosen] == rows[micro, rank // 2 % 4] * 2 * 64 * 2).all()
    assert lint(workload.traces, workload.groups) == []


@pytest.mark.parametrize(
    "text, problem",
    [
        ("[1, 2", "is no list of shares"),
        ("[1, 2, 3]", "has 3 shares for 3 layers of 8 experts"),
        ("[0, 0, 0, 0, 0, 0, 0, 0]", "only zeros"),
        ("[1, 1, 1, 1, 1, 1, 1, -1]", "negative"),
        ('{"a": 1}', "is no list of shares: its values are not numbers"),
        ('["1", "1", "1", "1", "1", "1", "1", "1"]', "is no list of shares: its values are not numbers"),
        ("[[1, 2], [3]]", "is no list of shares"),
    ],
)
def test_bad_files_are_refused(tmp_path, text, problem):
    path = tmp_path / "shares.json"
    path.write_text(text)
    with pytest.raises(ScenarioError, match=problem):
        routes_of(layout(routing={"kind": "file", "file": str(path)}))
    with pytest.raises(ScenarioError):
        routes_of(layout(routing={"kind": "file", "file": str(tmp_path / "none.json")}))
