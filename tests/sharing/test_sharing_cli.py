"""`trace share`: what it writes, and what it says."""

from __future__ import annotations

import json
from pathlib import Path

import numpy as np
import pytest
from worlds.training import ByWork, layout_of

from astrasim_py.chakra.et_io import write_prefix
from astrasim_py.cli.main import main
from astrasim_py.sharing.price import LEVELS, original_of, rank_correlation
from astrasim_py.topology.topology_files import read_edge_list
from astrasim_py.training.traces import training_workload

TOPOLOGY = "# npus 8\nsrc,dst,bandwidth,latency\n" + "".join(
    f"{npu},acme_tor,100 GB/s,500 ns\nacme_tor,{npu},100 GB/s,500 ns\n" for npu in range(8)
)


@pytest.fixture
def workload(tmp_path) -> Path:
    """A set of traces, with groups."""
    model = {"layers": 2, "hidden": 1024, "ffn": 4096, "heads": 8, "vocab": 5120}
    trained = training_workload(layout_of(8, model=model, gbs=8, nodes="fine", tp=2, pp=2), ByWork())
    made = original_of(trained).workload
    groups = json.dumps({name: list(ranks) for name, ranks in made.groups.items()}).encode()
    write_prefix(tmp_path / "acme_model", made.traces, beside={".groups.json": groups})
    return tmp_path / "acme_model"


def _said(capsys, *command: str) -> dict:
    capsys.readouterr()
    assert main(["trace", "share", *command, "--format", "json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.mark.parametrize("action", [["skeleton"], ["share", "--level", "hash"]])
def test_the_input_is_not_overwritten(action, workload, capsys):
    before = Path(f"{workload}.0.et").read_bytes()
    assert main(["trace", *action, str(workload), f"{workload.parent}/./{workload.name}"]) == 2
    assert "is IN itself, which would be lost" in capsys.readouterr().err
    assert Path(f"{workload}.0.et").read_bytes() == before


def test_files_are_not_called_after_the_input(workload, capsys):
    assert main(["trace", "share", str(workload), f"{workload}_given", "--level", "hash", "--price", "none"]) == 2
    assert 'tells the name of the input, "acme_model"' in capsys.readouterr().err


def test_share_says_what_it_removed_and_what_it_costs(workload, tmp_path, capsys):
    (tmp_path / "net.csv").write_text(TOPOLOGY)
    out, command = (
        tmp_path / "out",
        ["--level", "synthetic", "--seed", "4", "--with-topology", str(tmp_path / "net.csv")],
    )
    said = _said(capsys, str(workload), str(out), *command, "--scale-secret")
    assert said["removed"]["names"] > 50
    assert {"num_ops", "tensor_size"} <= set(said["removed"]["attributes"])
    assert len(said["price"]["error"]) >= 3
    assert 0.1 <= said["scales"]["time"] <= 10
    assert main(["trace", "lint", str(out), "--groups", f"{out}.groups.json"]) == 0
    files = {path.name: path.read_bytes() for path in tmp_path.iterdir() if path.name.startswith("out.")}
    assert len(files) == 10
    assert not any(b"acme" in data or b"attn" in data for data in files.values())
    again = tmp_path / "again"
    _said(capsys, str(workload), str(again), *command, "--scale-secret")
    assert all((tmp_path / name.replace("out", "again", 1)).read_bytes() == data for name, data in files.items())


def test_what_is_not_wanted_is_not_measured(workload, tmp_path, capsys):
    said = _said(capsys, str(workload), str(tmp_path / "out"), "--level=strip", "--price=none")
    assert said["price"] is None
    again = _said(
        capsys, str(workload), str(tmp_path / "out"), "--level=strip", "--price=error", f"--seed={said['seed']}"
    )
    assert again.keys() == said.keys() and again["price"]
    assert set(again["price"]["error"].values()) == {0.0}


@pytest.mark.parametrize("said", ["ring:8,bandwidth=50 GB/s,latency=1 us", "net.yaml", "dgx_h100"])
def test_topologies_may_be_whatever_the_command_line_takes(said, workload, tmp_path, capsys, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Path("net.yaml").write_text(
        "topology: {name: acme_net, shape: switch, npus: 8, bandwidth: 50 GB/s, latency: 1 us}\n"
    )
    command = ["--level", "skeleton", "--price", "none", "--scale-secret", "--seed", "1", "--with-topology", said]
    assert main(["trace", "share", str(workload), "out", *command]) == 0
    assert "follow from the topology file and a known bandwidth or latency of a link" in capsys.readouterr().out
    assert read_edge_list("out.topology.csv").npus == 8
    assert "acme" not in Path("out.topology.csv").read_text()


def test_a_string_that_would_survive_fails_the_command(workload, tmp_path, capsys, monkeypatch):
    monkeypatch.setattr("astrasim_py.sharing.secrets.strings_of", lambda workload: ({"x", '": ['}, set()))
    assert main(["trace", "share", str(workload), str(tmp_path / "out"), "--level", "hash"]) == 1
    assert """'": [' of the input would be in out.groups.json""" in capsys.readouterr().err
    assert not list(tmp_path.glob("out.*"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--level", "none"], "write one of strip, hash"),
        (
            ["--level", "quantise"],
            '"quantise" is gone: its workloads were recognised as often as skeletons; write skel',
        ),
        (["--level", "twin"], '"twin" is gone: its workloads were recognised as often as skeletons; write skeleton'),
        (["--level", "strip", "--rel", "0.1"], "--rel: is gone with the level quantise; drop it"),
        (["--level", "strip", "--corpus", "."], "--corpus: is gone with the attack; run benchmarks/sharing.py of the"),
        (["--level", "strip", "--price", "all"], "all is gone with the attack; write error; run benchmarks/sharing.py"),
        (["--level", "strip", "--price", "some"], '"some" is unknown; write error or none'),
        (["--level", "strip", "--seed", "-1"], "is negative"),
        (["--level", "strip", "--with-topology", "blob:8"], "is neither a file nor a shape nor a preset"),
    ],
)
def test_bad_options_are_refused(workload, capsys, options, said, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    assert main(["trace", "share", str(workload), str(tmp_path / "out"), *options]) == 2
    assert said in capsys.readouterr().err


def test_networks_keep_their_order_where_they_differ():
    first = np.array([100.0, 200.0, 300.0]) * 10**6
    assert rank_correlation(first, 2 * first) == 1.0
    assert rank_correlation(first, first[[0, 2, 1]]) == 0.5
    alike = np.array([100.0, 100.1, 300.0]) * 10**6
    assert rank_correlation(alike, alike[[1, 0, 2]]) == 1.0
    assert (rank_correlation(alike[:2], first[:2]), rank_correlation(first[:2], alike[:2])) == (1.0, 0.0)


def test_levels_are_in_the_order_of_what_they_remove():
    assert list(LEVELS) == ["strip", "hash", "skeleton", "synthetic"]
