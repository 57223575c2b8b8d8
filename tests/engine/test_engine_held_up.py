"""Messages that wait for a link that a slower one feeds: counted by link, at every level, by both engines."""

from __future__ import annotations

import random
from fractions import Fraction

import pytest
from worlds.flows import delivered, flows, random_messages
from worlds.small_problems import Table, workload

from astrasim_py.chakra.schema import NodeType
from astrasim_py.core.choices import LEVELS, QUEUEING_MODELS
from astrasim_py.engine.simulation import simulate
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology import build
from astrasim_py.topology.edge_list import read_csv

MIB = 2**20


def funnel(sources: int, slow: int, fast: int):
    """NPUs 0 … sources - 1 with links of `slow` GB/s to one, which has a link of `fast` GB/s to the last."""
    ends = [(i, sources, slow) for i in range(sources)] + [(sources, sources + 1, fast)]
    ends += [(b, a, rate) for a, b, rate in ends]
    return read_csv("\n".join(["src,dst,bandwidth,latency", *(f"{a},{b},{r} GB/s,0 s" for a, b, r in ends)]), "funnel")


def rules(model: str) -> dict:
    return {"network": NetworkModel(model=model)}


def held_up(topology, messages, model: str, level: str = "links", engine: str = "both") -> dict[str, int]:
    """Link → messages that waited behind one that a slower link fed, of links with such messages."""
    table = flows(topology, messages, level=level, engine=engine, **rules(model)).link
    pairs = zip(table["link"].tolist(), table["held_up"].tolist(), strict=True)
    return {topology.link_name(link): count for link, count in pairs if count}


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("model", QUEUEING_MODELS)
@pytest.mark.parametrize("sources", [1, 2, 3, 9])
def test_all_but_the_first_of_several_slow_links_wait(sources, model, level):
    messages = [(i, sources + 1, MIB, 0) for i in range(sources)]
    expected = {f"{sources}->{sources + 1}": sources - 1} if sources > 1 else {}
    assert held_up(funnel(sources, 50, 200), messages, model, level) == expected


def test_the_fast_link_is_kept_for_as_long_as_the_slow_ones_feed_it():
    """The k-th of n takes (1 + (k - 1) / 4) times what it takes alone; where links are shared, all take that."""
    messages = [(i, 4, 4 * MIB, 0) for i in range(3)]
    alone, quarter = 4 * MIB * 20, MIB * 20
    times = delivered(funnel(3, 50, 200), messages, **rules("cut_through"))
    assert times == [alone, alone + quarter, alone + 2 * quarter]
    assert delivered(funnel(3, 50, 200), messages, **rules("fluid")) == [alone] * 3


@pytest.mark.parametrize("model", QUEUEING_MODELS)
@pytest.mark.parametrize(
    ("slow", "fast", "messages"),
    [
        (50, 50, [(i, 4, MIB, 0) for i in range(3)]),  # waits, but no link is faster
        (200, 50, [(i, 4, MIB, 0) for i in range(3)]),
        (50, 200, [(0, 4, MIB, 0)] * 5),  # one after the other from one link
        (50, 200, [(i, 4, MIB, i * 10**9) for i in range(3)]),  # never two at a time
        (50, 200, [(i, 3, MIB, 0) for i in range(3)]),  # the fast link is not on their way
    ],
)
def test_no_false_alarm(slow, fast, messages, model):
    assert held_up(funnel(3, slow, fast), messages, model) == {}


@pytest.mark.parametrize("sources", [1, 2, 9])
@pytest.mark.parametrize("model", QUEUEING_MODELS)
def test_messages_in_line_of_scheduled_events_wait_for_the_same(sources, model):
    order = Semantics.native(cpu_slots=None, compute_slots=None, event_order="scheduled")
    messages = [(i, sources + 1, MIB, 0) for i in range(sources)]
    records = flows(funnel(sources, 50, 200), messages, level="links", semantics=order, **rules(model))
    assert records.link["held_up"].sum() == sources - 1


@pytest.mark.parametrize("model", ["analytical", "fluid"])
def test_models_without_lines_hold_nobody_up(model):
    assert held_up(funnel(3, 50, 200), [(i, 4, MIB, 0) for i in range(3)], model) == {}


@pytest.mark.parametrize("model", QUEUEING_MODELS)
@pytest.mark.parametrize("seed", range(3))
def test_who_is_held_up_has_waited(seed, model):
    """Two speeds on a torus; engines agree, and no link has more such messages than messages that waited there."""
    rng = random.Random(seed)
    rings = [{"kind": "ring", "size": 4, "bandwidth": Fraction(r), "latency": 1000} for r in (5 * 10**9, 2 * 10**10)]
    topology = build({"shape": "product", "dims": rings})
    records = flows(topology, random_messages(rng, topology.npus, 60), **rules(model))
    waited = dict.fromkeys(records.link["link"].tolist(), 0)
    for link, asked, start in zip(
        *(records.hop[name].tolist() for name in ("link", "requested", "start")), strict=True
    ):
        waited[link] += start > asked
    counts = records.link["held_up"].tolist()
    assert sum(counts) > 0 and all(n <= w for n, w in zip(counts, waited.values(), strict=True))


@pytest.mark.parametrize("model", QUEUEING_MODELS)
def test_a_folded_run_counts_for_all_ranks(model):
    """On each fast link a message of its own NPU waits behind one that has crossed a slow link before."""
    rings = [{"kind": "ring", "size": 3, "bandwidth": Fraction(r), "latency": 1000} for r in (5 * 10**9, 2 * 10**10)]
    topology = build({"shape": "product", "dims": rings})

    def ends(rank: int, way: int) -> list[dict]:
        """What a rank sends to, or receives from, those one further in both dimensions and in the second."""
        far, near = ((rank + way * x) % 3 + 3 * ((rank // 3 + way) % 3) for x in (1, 0))
        kind = NodeType.COMM_SEND if way > 0 else NodeType.COMM_RECV
        pairs = [(rank, peer) if way > 0 else (peer, rank) for peer in (far, near)]
        return [
            {"type": kind, "comm_src": src, "comm_dst": dst, "comm_size": MIB, "comm_tag": tag}
            for tag, (src, dst) in enumerate(pairs)
        ]

    # Under store_and_forward the whole message has to be there before.
    late = {"type": NodeType.COMP, "duration_ps": 2000 if model == "cut_through" else MIB * 200 + 2000}
    nodes = [[first, late, {**second, "deps": {1}}, *ends(r, -1)] for r in range(9) for first, second in [ends(r, 1)]]
    job = Job(workload=workload(nodes), placement=tuple(range(9)), algorithms=Table("ring"))
    problem = Problem(topology=topology, jobs=(job,), **rules(model))
    folded, full = (simulate(problem, fold=fold, level="summary") for fold in (True, False))
    assert folded.engine.endswith("+fold") and folded.link["held_up"].sum() == 9
    assert folded.link["held_up"].tolist() == full.link["held_up"].tolist()
