"""Runs of scenarios with tiles: what the tiles wait for is verified, once for each algorithm and its tiles."""

from __future__ import annotations

import json

import numpy as np
import pytest

from astrasim_py.cli.main import main
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.dialects.tiles import check as tiles
from astrasim_py.dialects.tiles import lower as gates
from astrasim_py.dialects.tiles.check import check_tiles, tiled
from astrasim_py.engine.simulation import plan_for
from astrasim_py.preparation import verdicts
from astrasim_py.preparation.prepare import prepare
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario

TOPOLOGY = {"shape": "ring", "npus": 4, "bandwidth": "100 GB/s", "latency": "1 us"}


def layer(algorithm, *, repeats: int = 1, **keys) -> dict:
    """All_reduces, each with a computation that consumes it in 4 tiles."""
    items = []
    for k in range(repeats):
        items.append({"all_reduce": {"name": f"sum{k}", "size": "1 MiB"}})
        items.append({"compute": {"name": f"use{k}", "time": "1 ms", "tiles": 4, "consumes": f"sum{k}"}})
    return {"topology": TOPOLOGY, "workload": items, "algorithms": {"all_reduce": algorithm}} | keys


def checked(scenario: dict) -> list[str]:
    """Warnings of the check of a scenario's only point."""
    (point,) = expand(load_scenario(scenario, allow_outside=True))
    warnings: list[str] = []
    check_tiles(plan_for(prepare(point).problem), point, warnings.append)
    return warnings


def test_equal_calls_are_verified_once():
    (point,) = expand(load_scenario(layer("ring", repeats=5)))
    plan = plan_for(prepare(point).problem)
    assert len(plan.instances) == 5 and len(plan.tiles) == 4
    ((algorithm, uses),) = tiled(plan)
    assert algorithm.name == "ring" and uses == (tuple((0, tile, 4) for tile in range(4)),) * 4
    assert tiles.verify_tiles(algorithm, uses).passes


@pytest.fixture
def wrong_cells(monkeypatch):
    """A fault in what makes gates: a tile waits for the step that writes another cell."""
    right = gates.cells_of_rank

    def shifted(algorithm, rank):
        found = right(algorithm, rank)
        return found._replace(last=np.roll(found.last, 1))

    monkeypatch.setattr(gates, "cells_of_rank", shifted)
    monkeypatch.setattr(verdicts, "kept_verdict", lambda key, make: make())


def test_a_wrong_pairing_is_refused(wrong_cells):
    with pytest.raises(AlgorithmError) as refused:
        checked(layer("ring"))
    assert "ring (all_reduce, 4 ranks, in tiles) is wrong: race: rank 2 node" in str(refused.value)
    assert "of 4 of all_reduce, call 0) reads input chunk" in str(refused.value)
    assert checked(layer("ring", verify=False)) == []


def test_it_is_refused_on_the_command_line(wrong_cells, tmp_path, capsys):
    (tmp_path / "layer.yaml").write_text(json.dumps(layer("ring")))
    for command in ("check", "run"):
        assert main([command, str(tmp_path / "layer.yaml"), *(["--out", str(tmp_path)] * (command == "run"))]) == 3
        assert "in tiles) is wrong: race: rank 2 node" in capsys.readouterr().err
    assert main(["verify", str(tmp_path / "layer.yaml")]) == 1
    assert "problem: race: rank 2 node" in capsys.readouterr().out


def test_an_algorithm_that_races_is_warned_of_with_its_tiles(repo):
    """Which of two steps writes a cell last is not known, so that a tile may read either."""
    file = {"file": str(repo / "scenarios/algorithms/find_the_bug/race.xml")}
    (warning,) = checked(layer(file))
    assert "race (all_reduce, 4 ranks, in tiles) race: rank 2 node" in warning


def test_too_many_nodes_are_unknown(repo, monkeypatch):
    monkeypatch.setattr(tiles, "MOST_NODES", 10)
    assert checked(layer("ring", verify="strict")) == []
    file = {"file": str(repo / "scenarios/algorithms/find_the_bug/right.xml")}
    (warning,) = checked(layer(file))
    assert warning.endswith("right (all_reduce, 4 ranks, in tiles) could not be verified: its 60 nodes are too many")
