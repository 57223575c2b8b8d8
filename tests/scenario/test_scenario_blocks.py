"""An all_to_all of unequal blocks: what it moves, its bound, its verdicts, and who can carry it out."""

from __future__ import annotations

from fractions import Fraction
from itertools import chain

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from worlds.bounds import problem_bound

from astrasim_py.cli.main import main
from astrasim_py.core.errors import AstraError
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.inputs import input_digests
from astrasim_py.preparation.prepare import prepare
from astrasim_py.preparation.sources.blocks import direct
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.system.lowering import make_plan
from astrasim_py.verification.verifier import verify

FULL = "topology: {shape: fully_connected, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}\n"
RATE = 50 * 10**9
SIZES = ((0, 4, 8, 0), (1, 0, 0, 2), (16, 3, 0, 0), (0, 0, 7, 0))
KIB = 1024


def rows_text(sizes, unit="KiB"):
    return "[" + ", ".join("[" + ", ".join(f"{x} {unit}" if x else "0" for x in row) + "]" for row in sizes) + "]"


def points(tmp_path, text, *overrides):
    (tmp_path / "s.yaml").write_text(text)
    return expand(load_scenario(tmp_path / "s.yaml", overrides))


def run(point, **options):
    prepared = prepare(point)
    records = simulate(prepared.problem, engine="both", **options)
    assert records.outcome.status == "done"
    return prepared, records


def test_a_direct_exchange_takes_its_largest_block(tmp_path):
    """Every pair has a link: the time is latency and the bytes of the largest block, and every byte moves once."""
    (point,) = points(tmp_path, f"{FULL}workload: [{{all_to_all: {{blocks: {rows_text(SIZES)}}}}}]\n")
    prepared, records = run(point, level="links")
    largest = max(chain(*SIZES)) * KIB
    assert records.makespan == 500_000 + -(-largest * 10**12 // RATE)
    assert int(records.link["bytes"].sum()) == sum(chain(*SIZES)) * KIB
    bound = problem_bound(make_plan(prepared.problem))
    into = max(sum(row[b] for row in SIZES) for b in range(4)) * KIB
    out = max(map(sum, SIZES)) * KIB
    assert bound == 500_000 + int(Fraction(max(into, out) * 10**12, 3 * RATE)) <= records.makespan


def test_equal_blocks_are_an_all_to_all(tmp_path):
    """The same times as the collective with a size, with the same algorithm."""
    equal = rows_text([[0 if a == b else 64 for b in range(4)] for a in range(4)])
    network = "topology: {shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}\n"
    (blocks,) = points(tmp_path, f"{network}workload: [{{all_to_all: {{blocks: {equal}}}}}]\n")
    (size,) = points(
        tmp_path, f"{network}workload: [{{all_to_all: {{size: 256 KiB}}}}]\nalgorithms: {{all_to_all: direct}}\n"
    )
    assert run(blocks)[1].makespan == run(size)[1].makespan


def test_files_rows_groups_and_repetitions(tmp_path):
    (tmp_path / "sizes.csv").write_text("# KiB\n0, 4 KiB\n12288, 0\n")
    text = FULL + (
        "groups: {pair: [[0, 1], [2, 3]]}\n"
        "workload:\n"
        "  - all_to_all: {blocks: sizes.csv, group: pair, repeat: 3, name: first}\n"
        f"  - all_to_all: {{blocks: {rows_text(SIZES)}, after: first}}\n"
        "  - all_to_all: {size: 64 KiB}\n"
        "algorithms: {all_to_all: [{when: {group: pair}, builder: direct}, {builder: direct}]}\n"
    )
    (point,) = points(tmp_path, text)
    assert "sizes.csv" in input_digests(point)
    prepared, records = run(point, level="links")
    moved = 3 * 2 * 16 * KIB + sum(chain(*SIZES)) * KIB + 4 * 3 * 16 * KIB
    assert int(records.link["bytes"].sum()) == moved
    assert prepared.problem.jobs[0].algorithms.places  # no case is told to be unused
    assert all(prepared.problem.jobs[0].algorithms.places.values())


@pytest.mark.slow
def test_synthesized_exchanges_and_the_verb_verify(tmp_path, capsys, monkeypatch):
    mesh = "topology: {shape: mesh, dims: [2, 2], bandwidth: 50 GB/s, latency: 500 ns}\n"
    text = f"{mesh}workload: [{{all_to_all: {{blocks: {rows_text(SIZES, 'MiB')}}}}}]\n"
    (plain,) = points(tmp_path, text)
    (made,) = points(tmp_path, f"{text}algorithms: {{all_to_all: {{synthesize: {{rounds: 20}}}}}}\n")
    slow, fast = run(plain), run(made)
    bound = problem_bound(make_plan(fast[0].problem))
    assert 0 < bound <= fast[1].makespan <= slow[1].makespan
    assert main(["verify", str(tmp_path / "s.yaml")]) == 0
    assert "correct      yes" in capsys.readouterr().out


@given(st.data())
@settings(max_examples=40, deadline=None)
def test_any_blocks_are_exchanged_as_they_promise(data):
    """The verifier's contract is that of the blocks; unit and order do not matter."""
    n = data.draw(st.integers(1, 5))
    sizes = data.draw(st.lists(st.lists(st.integers(0, 6), min_size=n, max_size=n), min_size=n, max_size=n))
    unit = data.draw(st.sampled_from([1, 3, 1024]))
    algorithm = direct(tuple(tuple(x * unit for x in row) for row in sizes))
    verdict = verify(algorithm)
    assert verdict.ok and verdict.correct
    moved = sum(x for a, row in enumerate(sizes) for b, x in enumerate(row) if a != b)
    assert len(algorithm.contract.outputs) <= moved


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("{all_to_all: {blocks: [[0, 1 KiB], [0]]}}", "s.yaml:2:47: workload[0].all_to_all.blocks[1]: is not a row"),
        ("{all_to_all: {blocks: [[0, 1], [0, 0]]}}", '1 is not a size: it has no unit; write 0, or a size such'),
        ("{all_to_all: {blocks: [[0, 1 KiB], [0, 0]]}}", "2 rows of sizes, and the group has 4 ranks"),
        ("{all_to_all: {blocks: 5}}", "5 is neither a file nor rows of sizes"),
        ("{all_to_all: {blocks: [[0]], size: 1 KiB}}", "has size and blocks; drop size"),
        ("{all_to_all: {group: [0, 1]}}", '"size" is missing; write e.g. size: 64 MiB, or blocks: sizes.csv'),
        ("{all_to_all: {blocks: missing.csv}}", "missing.csv: cannot be read"),
        ("{all_to_all: {blocks: ../missing.csv}}", "leads out of the folder"),
        ("{all_to_all: {blocks: bad.csv}}", "bad.csv:2: 3 sizes, and there are 4 ranks"),
        ("{all_gather: {blocks: [[0]]}}", "blocks"),
    ],
)  # fmt: skip
def test_wrong_blocks_are_refused_in_a_line(tmp_path, text, expected):
    (tmp_path / "bad.csv").write_text("# sizes\n0,1,2\n")
    with pytest.raises(AstraError) as caught:
        for point in points(tmp_path, f"{FULL}workload: [{text}]\n"):
            prepare(point)
    assert any(expected in line for line in caught.value.lines()), caught.value.lines()


@pytest.mark.parametrize("algorithm", ["pairwise", "nccl", "{builder: direct, window: 2}", "{dims: [direct]}", "bruck"])
def test_other_algorithms_refuse_unequal_blocks_in_a_line(tmp_path, algorithm):
    with pytest.raises(AstraError) as caught:
        text = f"{FULL}workload: [{{all_to_all: {{blocks: {rows_text(SIZES)}}}}}]\n"
        (point,) = points(tmp_path, f"{text}algorithms: {{all_to_all: {algorithm}}}\n")
        make_plan(prepare(point).problem)
    (line,) = caught.value.lines()
    assert "unequal" in line and "write direct, or synthesize" in line
