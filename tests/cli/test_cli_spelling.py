"""Remedies on the command line can be typed: they are in the spelling of its options, not in YAML's."""

from __future__ import annotations

import re
import shlex

import pytest

from astrasim_py.cli.main import main
from astrasim_py.cli.spelling import spelled

RING = "ring:4,bandwidth=50 GB/s,latency=1 us"
SYNTHESIZE = ["synthesize", "--collective", "all_gather", "--size", "1 MiB", "--topology"]
TRAIN = ["train", "llama3-8b", "--seq", "2048"]
#: Arguments, and the remedy.
SAID = [
    (["train", "llama3-8b"], "--gbs is missing; write e.g. --gbs 512, or --microbatches 8"),
    (["train", "llama3-8", "--gbs", "64"], 'train: MODEL: there is no model "llama3-8"; did you mean "llama3-8b"?'),
    (["train", "dlrm-mlperf"], "--gbs is missing; write e.g. --gbs 65536"),
    ([*TRAIN, "--gbs", "64", "--tp", "3", "--explain"], "train: tp 3 does not divide 32 heads; write --tp 2"),
    ([*TRAIN, "--gbs", "64", "--tp", "3"], "train: tp 3 does not divide 32 heads; write --tp 2"),
    (["train", "llama3-70b", "--gbs", "64", "--gpus", "8", "--explain"], "--zero 3"),
    ([*SYNTHESIZE, "ring:4"], 'write e.g. "ring:4,bandwidth=50 GB/s"'),
    ([*SYNTHESIZE, "ring"], "write e.g. ring:8"),
    ([*SYNTHESIZE, "torus"], "write e.g. torus:8x8"),
    ([*SYNTHESIZE, "ring:4,bandwidth=50,latency=1 us"], "write e.g. bandwidth=50 GB/s"),
    (["list", "topology", "torus"], "write e.g. torus:8x8"),
    ([*SYNTHESIZE, RING, "--budget", "3"], 'write e.g. --budget "30 s"'),
    ([*SYNTHESIZE, RING, "--exact", "--exact-limit", "3"], 'write e.g. --exact-limit "60 s"'),
    ([*SYNTHESIZE[:4], "7", *SYNTHESIZE[5:], RING], 'write e.g. --size "64 MiB"'),
    (["optimize", "SCENARIO", "--out", "OUT", "--budget", "3"], 'write e.g. --budget "60 s"'),
    (["optimize", "SCENARIO", "--out", "OUT", "--budget", "0 s"], 'write e.g. --budget "60 s"'),
    (["run", "SCENARIO", "--max-sim-time", "3"], 'write e.g. --max-sim-time "10 ms"'),
    (["convert", "builder:ring:all_reduce:4", "OUT", "--size", "3"], 'write e.g. --size "1 MiB"'),
    (["convert", "builder:ring:all_reduce:4", "OUT.xml", "--min-bytes", "3"], 'write e.g. --min-bytes "1 MiB"'),
]


@pytest.mark.parametrize(("argv", "said"), SAID, ids=[" ".join(argv)[:60] for argv, _ in SAID])
def test_a_remedy_is_in_the_words_of_its_option(tmp_path, capsys, monkeypatch, argv, said):
    monkeypatch.chdir(tmp_path)
    (tmp_path / "s.yaml").write_text(
        "topology: {shape: ring, npus: 2, bandwidth: 1 GB/s, latency: 1 us}\nworkload: [{all_reduce: {size: 1 MiB}}]\n"
    )
    argv = [word.replace("SCENARIO", "s.yaml").replace("OUT", str(tmp_path / "out")) for word in argv]
    assert main(argv) == 2
    err = capsys.readouterr().err
    assert said in err, err
    remedy = err.rpartition("; ")[2]
    assert not re.search(r"\w: ", remedy) and "train:1" not in err, err


def test_what_a_remedy_says_can_be_typed(capsys):
    """Each remedy that is followed leads on, until nothing is missing."""
    argv, seen = ["train", "llama3-8b", "--gpus", "8", "--explain"], []
    for _ in range(5):
        if main([*argv, "--ignore-memory"]) == 0:
            break
        said = capsys.readouterr().err.rpartition("; write e.g. ")[2].partition(", or ")[0]
        seen.append(said.strip())
        argv += shlex.split(said)
    assert "--gbs 512" in seen and main([*argv, "--ignore-memory"]) == 0


def test_settings_become_options():
    options = {"tp": "--tp", "sizes": "SHAPE:{value}"}
    assert spelled("write tp: 2 and zero: 3", options) == "write --tp 2 and zero: 3"
    assert spelled("write zero: 3", options, "KEY={key},{value}") == "write KEY=zero,3"
    assert spelled('write sizes: 8, or rate: "5 GB/s"', options, "{key}={value}") == "write SHAPE:8, or rate=5 GB/s"
    assert spelled("write 1 to 8, or drop it", options, "{key}={value}") == "write 1 to 8, or drop it"
    assert spelled("write tp: [1, 2]", options) == 'write --tp "[1, 2]"'
