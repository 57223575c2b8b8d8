"""Random edits of correct programs: the verifier flags every one, or an independent run shows it does no harm."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from oracle import msccl_mutants as mutants
from oracle import msccl_oracle as oracle

from astrasim_py.builders.registry import ALGORITHMS, build
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.msccl.ir import steps_from
from astrasim_py.msccl.well_formed import findings
from astrasim_py.msccl.xml_reader import parse_program
from astrasim_py.msccl.xml_writer import program_of, program_text
from astrasim_py.verification.verifier import verify


def verdict_of(text):
    """The product's verdict on XML; None where its reader refuses the document."""
    try:
        program = parse_program(text.encode(), "mutant.xml")
        found = findings(program)
        return verify(steps_from(program), problems=found.problems, warnings=found.warnings)
    except AlgorithmError:
        return None


def differences(verdict, judged):
    """Fields in which product and oracle disagree: (field, product's, oracle's)."""
    if verdict is None:
        return [] if judged.problems else [("reads", False, True)]
    pairs = [("well_formed", verdict.well_formed, judged.well_formed)]
    if judged.ends is not None and verdict.terminates is not None:
        names = ("slots", "terminates", "min_slots", "min_slots_large")
        pairs += [(name, getattr(verdict, name), getattr(judged, name)) for name in names]
    if judged.ends:
        pairs.append(("race_free", verdict.race_free, judged.races == 0))
        if judged.races == 0:
            wrong = judged.wrong_cells and judged.wrong_cells[0]
            pairs.append(("wrong_cells", verdict.wrong_cells, wrong))
            pairs.append(("correct", verdict.correct, judged.correct))
            if judged.correct or judged.collective == "allreduce":
                # In what order a copy that should be none was added up is nobody's question.
                pairs.append(("order_consistent", verdict.order_consistent, judged.order_consistent))
    if not judged.well_formed:
        # What is said of an ill-formed program is right; not everything needs to be said.
        pairs = [pair for pair in pairs if pair[1] is not None]
    return [pair for pair in pairs if pair[1] != pair[2]]


def flagged(verdict):
    return verdict is None or not (verdict.well_formed and verdict.terminates and verdict.correct and verdict.race_free)


def written(algorithm, collective, ranks, **options):
    """XML of a builder's algorithm."""
    return program_text(program_of(build(algorithm, collective, ranks, **options)))


def made_sources():
    """Correct programs that no file is needed for."""
    return [
        mutants.fused_ring(2),
        mutants.fused_ring(4),
        mutants.fused_ring(3, count=2),
        mutants.all_pairs(3),
        mutants.all_pairs(4),
        written("direct", "all_reduce", 4),
        written("direct", "all_to_all", 4),
        written("double_binary_tree", "all_reduce", 6),
        written("halving_doubling", "all_reduce", 8),
        written("recursive_doubling", "all_gather", 4),
        written("ring", "reduce_scatter", 4),
        written("binomial_tree", "broadcast", 5),
        written("binomial_tree", "reduce", 5),
    ]


def survey(sources, number, seed):
    """Judge random mutants twice; what was found, by kind, and every disagreement."""
    rng, seen, wrong = random.Random(seed), Counter(), []
    while sum(seen.values()) < number:
        source = rng.choice(sources)
        mutant = mutants.mutate(source, rng)
        if mutant is None:
            continue
        kind, text = mutant
        judged, verdict = oracle.judge(text, schedules=2), verdict_of(text)
        differing = differences(verdict, judged)
        if judged.races == 0 and judged.wrong_cells and len(set(judged.wrong_cells)) > 1:
            differing.append(("schedules of a race-free program", judged.wrong_cells, None))
        if not flagged(verdict) and not judged.fine:
            differing.append(("slips through", True, judged))
        if differing:
            wrong.append((kind, differing, text))
        seen[kind, "flagged" if flagged(verdict) else "harmless"] += 1
    return seen, wrong


def explain(wrong):
    kind, differing, text = min(wrong, key=lambda found: len(found[2]))
    return f"{len(wrong)} disagreements; {kind}: {differing}\n{text}"


def test_programs_to_edit_are_correct():
    for source in made_sources():
        assert oracle.judge(source).fine
        assert not flagged(verdict_of(source))
        assert not differences(verdict_of(source), oracle.judge(source))


@pytest.mark.parametrize("algorithm", sorted(set(ALGORITHMS) - {"dissemination", "hierarchical"}))
def test_written_builders_are_right_when_they_are_run(algorithm):
    """Not only the verifier says so: with two slots, whatever the size, in any order."""
    for collective in sorted(set(ALGORITHMS[algorithm][0]) - {"barrier"}):
        for ranks in (2, 4, 8):
            judged = oracle.judge(written(algorithm, collective, ranks), schedules=2)
            assert judged.fine and max(judged.min_slots, judged.min_slots_large) <= 2, (collective, ranks, judged)


@pytest.mark.slow
def test_every_mutant_is_flagged_or_harmless():
    seen, wrong = survey(made_sources(), 500, seed=2024)
    assert not wrong, explain(wrong)
    assert {kind for kind, _ in seen} == set(mutants.KINDS)
    assert sum(times for (_, found), times in seen.items() if found == "flagged") > 300


def test_every_mutant_of_real_programs_is_flagged_or_harmless(golden):
    sources = []
    for path in sorted((golden / "msccl" / "public").glob("*.xml")):
        text = path.read_text()
        if path.stat().st_size < 20_000 and oracle.judge(text, schedules=1).fine:
            sources.append(text[text.index("<algo") : text.index("</algo>") + 7])
    if len(sources) < 10:
        pytest.fail("too few programs to edit")
    _, wrong = survey(sources, 100, seed=7)
    assert not wrong, explain(wrong)


@pytest.mark.slow
def test_verdicts_of_random_programs_equal_the_oracles():
    """Most race, hang, or need many slots; none is anybody's."""
    kinds, wrong = Counter(), []
    for seed in range(400):
        text = mutants.random_program(random.Random(seed))
        judged, verdict = oracle.judge(text, schedules=2), verdict_of(text)
        assert judged.well_formed, judged.problems
        if differences(verdict, judged):
            wrong.append((f"seed {seed}", differences(verdict, judged), text))
        kinds["hangs" if not judged.ends else "races" if judged.races else f"{judged.min_slots} slots"] += 1
    assert not wrong, explain(wrong)
    assert kinds["hangs"] > 30 and kinds["races"] > 30 and kinds["1 slots"] > 100 and len(kinds) > 6


@pytest.mark.slow
def test_races_beyond_counting_are_still_races():
    """Two ranks, 10,000 steps each that all touch one cell: 100 million pairs are not looked at one by one."""

    def blocks(rank):
        return [(-1, -1, 0, [("re", "i0", f"i{s % 2}", 1, None) for s in range(100)]) for _ in range(100)]

    verdict = verdict_of(mutants.document("all at once", 2, blocks))
    assert verdict.race_free is False and verdict.races > 1000 and not verdict.correct
