"""Rings of copies: a few copies stand for all, to the picosecond."""

import random

import numpy as np
import pytest

from astrasim_py.builders.registry import build
from astrasim_py.chakra.schema import MISSING
from astrasim_py.core.errors import FoldError
from astrasim_py.core.records import Records
from astrasim_py.engine.fold_cover import distances, short_ring
from astrasim_py.engine.fold_roles import run_folded_roles
from astrasim_py.engine.simulation import _run_part, plan_for, simulate
from astrasim_py.preparation.prepare import prepare
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.system.bound import bound_parts
from astrasim_py.system.problem import Problem


def problem(tmp_path, keys: str, nodes: int, beside: str = "", algorithms: str = "") -> Problem:
    path = tmp_path / "x.yaml"
    shape = "{base: llama3-8b, layers: 4, hidden: 1536, ffn: 3072, heads: 8, kv_heads: 8, head_dim: 192, vocab: 24576}"
    path.write_text(
        f"name: x\ntopologies: {{dgx: {{preset: dgx_h100, nodes: {nodes}}}}}\ncompute: {{preset: dgx_h100}}\n"
        f"workload: {{training: {{model: {shape}, seq: 512, {keys}}}{beside}}}\n{algorithms}"
    )
    (point,) = expand(load_scenario(str(path)))
    return prepare(point).problem


def covered(made: Problem) -> Records:
    """The folded run in which no role is kept with all its ranks."""
    return run_folded_roles(plan_for(made, fold=True), "links", _run_part, most=0)


def same(one: Records, other: Records) -> None:
    for name in ("finish", "compute", "exposed_comm"):
        assert np.array_equal(getattr(one, name), getattr(other, name)), name
    assert one.messages == other.messages
    assert {name: one.link[name].tolist() for name in one.link} == {
        name: other.link[name].tolist() for name in other.link
    }


@pytest.mark.parametrize("nodes", [3, 4])
@pytest.mark.parametrize("zero", [1, 2, 3])
def test_few_copies_stand_for_a_ring_of_them(tmp_path, nodes, zero):
    """A node is a stage; gradients and weights meet messages between stages on NICs."""
    keys = f"tp: 8, pp: 3, zero: {zero}, gbs: {4 * nodes}, overlap: {{dp: true}}"
    made = problem(tmp_path, keys, 3 * nodes)
    folded = covered(made)
    assert folded.fold is not None and folded.fold.exact
    assert folded.fold.ranks == 3 * 2 < 3 * nodes * 8
    same(folded, simulate(made, engine="compiled", level="links"))


def test_a_folded_training_has_the_lower_bound_of_the_full_one(tmp_path):
    """The longest path goes through messages between stages."""
    made = problem(tmp_path, "tp: 8, pp: 2, zero: 1, gbs: 4", 4)
    bounds = [bound_parts(plan_for(made, fold=fold)) for fold in (True, False)]
    assert bounds[0] == bounds[1] is not None


def test_random_trainings_are_exact_or_within_what_they_say(tmp_path):
    """With five copies sizes are no multiples of the chunks."""
    rng, exact = random.Random(7), 0
    for _ in range(14):
        pp, nodes = rng.choice([1, 2, 3]), rng.choice([3, 4, 5])
        zero, m = rng.choice([0, 1, 2, 3]), rng.choice([1, 2, 4])
        overlap = rng.choice(["true", "false"])
        keys = f"tp: 8, pp: {pp}, zero: {zero}, gbs: {m * nodes}, overlap: {{dp: {overlap}}}"
        software = rng.choice(["ideal", "pytorch", "nanotron"])
        made = problem(tmp_path, keys, pp * nodes, f", software: {software}")
        folded, full = covered(made), simulate(made, engine="compiled", level="links")
        assert folded.fold is not None
        assert abs(folded.makespan - full.makespan) <= folded.fold.deviation <= full.makespan // 25
        if folded.fold.exact:
            exact += 1
            same(folded, full)
    assert exact >= 7


def test_a_short_ring_has_the_steps_of_the_long_one():
    whole = build("ring", "all_reduce", 128)
    short = short_ring(whole, 2)
    assert distances(whole) == (1,)
    assert (short.ranks, short.chunks) == (2, 128)
    assert len(short.traces[0]) == len(whole.traces[0])
    assert set(short.traces[1].column("comm_dst").tolist()) == {MISSING, 0}


@pytest.mark.parametrize(("name", "ranks"), [("halving_doubling", 8), ("double_binary_tree", 6)])
def test_what_is_no_ring_is_refused(name, ranks):
    with pytest.raises(FoldError, match="are no ring"):
        distances(build(name, "all_reduce", ranks))
