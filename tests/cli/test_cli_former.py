"""Former spellings of the command line do what the present ones do, and a line on stderr names these."""

from __future__ import annotations

import shlex
from pathlib import Path

import pytest

from astrasim_py.cli.former import FORMER_VERBS, FORMER_WORDS, renewed
from astrasim_py.cli.main import main
from astrasim_py.cli.verbs import VERBS

SCENARIO = """\
name: x
topologies: {r: {shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}}
workload: [{all_reduce: {size: $size}}]
sweep: {size: [1 KiB, 1 MiB]}
"""
EXAMPLES = [example for row in (*FORMER_VERBS.values(), *FORMER_WORDS) for example in row.examples]


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """A scenario `x.yaml` and its results."""
    path = tmp_path_factory.mktemp("former")
    (path / "x.yaml").write_text(SCENARIO)
    assert main(["run", str(path / "x.yaml"), "--out", str(path / "results"), "--quiet", "--jobs", "1"]) == 0
    return path


def run(capsys, words: str) -> tuple[int, str, list[str]]:
    code = main(shlex.split(words))
    out, err = capsys.readouterr()
    return code, out, err.splitlines()


def test_every_row_has_an_example():
    assert all(row.examples for row in (*FORMER_VERBS.values(), *FORMER_WORDS))
    assert not FORMER_VERBS.keys() & VERBS.keys()


@pytest.mark.parametrize(("former", "present"), EXAMPLES)
def test_a_former_spelling_is_the_present_one_and_a_line(folder, monkeypatch, capsys, former, present):
    assert renewed(shlex.split(former)) == shlex.split(present)
    assert renewed(shlex.split(present)) == shlex.split(present), "and that stays"
    monkeypatch.chdir(folder)
    code, out, lines = run(capsys, present)
    assert run(capsys, former) == (
        code,
        out,
        [f'astrasim-py: "{former}" is now "{present}"; the former spelling goes in 0.4.0', *lines],
    )


def test_what_was_never_a_spelling_is_not_rewritten(capsys):
    code, out, lines = run(capsys, "run x.yaml --jons 3")
    assert (code, out, len(lines)) == (2, "", 1)
