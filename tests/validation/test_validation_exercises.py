"""The exercises of the class: every answer is what is simulated, every hint is for a wrong one."""

import base64
import gzip
import json
import re
from fractions import Fraction
from pathlib import Path

import pytest

import astrasim_py
from astrasim_py.cli.main import main
from astrasim_py.core.errors import UsageError
from astrasim_py.inspection.point_choice import point_names
from astrasim_py.inspection.view import view_page
from astrasim_py.msccl.to_traces import read_algorithm
from astrasim_py.runs.sweep import run_scenario
from astrasim_py.scenario.load import load_scenario
from astrasim_py.validation.exercises import answer_to, exercises, judged, typed
from astrasim_py.verification.verifier import verify

ALL = [(exercise, question) for exercise in exercises() for question in exercise.questions]
NAMES = [f"{exercise.title}, {question.step}" for exercise, question in ALL]


def test_seven_exercises_fit_90_minutes_and_have_the_same_steps():
    assert len(exercises()) == 7
    assert sum(exercise.minutes for exercise in exercises()) <= 90
    assert all([q.step for q in one.questions] == ["predict", "run", "see", "break", "assert"] for one in exercises())


@pytest.mark.parametrize(("exercise", "question"), ALL, ids=NAMES)
def test_the_right_answer_is_right_and_hints_are_for_wrong_ones(exercise, question):
    right = answer_to(exercise, question)
    assert judged(question, right, right) == (True, question.why)
    # A student copies what the table prints: four digits.
    assert judged(question, right, Fraction(f"{float(right):.4g}"))[0]
    for hint in question.hints:
        assert judged(question, right, Fraction(str(hint["answer"]))) == (False, hint["why"])


def test_the_law_of_the_ring_is_exact():
    exercise = exercises()[0]
    step_ns = 1000 + Fraction(8 * 2**20, 50)
    assert answer_to(exercise, exercise.questions[4]) == 14 * step_ns / 1000


def test_the_page_shows_how_busy_a_link_is(tmp_path):
    exercise = exercises()[0]
    question = exercise.questions[2]
    sets = ("sweep.size=[512 KiB]", "sweep.latency=[1 us]", "plots=[]")
    lesson = Path(astrasim_py.__file__).parent / "data/lessons" / f"{exercise.lesson}.yaml"
    run_scenario(load_scenario(lesson, sets), out=tmp_path)
    first, *others = question.points
    names = point_names([f"{exercise.lesson}@{first}", *(f"@{point}" for point in others)], tmp_path)
    page = view_page(names, tmp_path, []).decode()
    run = json.loads(gzip.decompress(base64.b64decode(re.search(r'class="run">(.*?)</script>', page)[1])))
    bins, row = run["use"]["bins"], run["use"]["link"].index(run["links"]["name"].index(question.link))
    shown = Fraction(sum(run["use"]["busy"][row * bins : (row + 1) * bins]), bins)
    assert judged(question, answer_to(exercise, question), shown)[0]


def test_numbers_of_the_last_exercise_are_those_of_verify(repo):
    _, run, _, slots, passing = exercises()[6].questions
    verdicts = {
        name: verify(read_algorithm(repo / "scenarios" / "algorithms" / "find_the_bug" / f"{name}.xml"), slots=2)
        for name in ("right", "wrong_sum", "race", "deadlock")
    }
    assert sum(verdict.passes for verdict in verdicts.values()) == passing.number
    assert verdicts["deadlock"].min_slots == slots.number
    assert f"(line {run.number})" in verdicts["wrong_sum"].counterexample["text"]


def test_units_are_converted_and_other_kinds_refused():
    assert typed("80.5", "ms") == typed("80500 us", "ms") == typed("80.5 ms", "ms") == Fraction("80.5")
    assert typed("400 Gb/s", "GB/s") == 50
    for text in ("8 GB", "many", "", "1 2", "9" * 5000, "1e999999999"):
        with pytest.raises(UsageError, match="is not an answer"):
            typed(text, "ms")


def test_the_command_checks_an_answer(capsys):
    assert main(["new", "lesson", "1", "1", "80.56"]) == 0
    assert main(["new", "lesson", "1", "1", "42.95"]) == 1
    out = capsys.readouterr().out
    assert out.startswith("Right. 30 steps") and "Not yet. This is S/B." in out
    assert (
        main(["new", "lesson", "8"]) == main(["new", "lesson", "1", "6", "3"]) == main(["new", "lesson", "1", "1"]) == 2
    )
    assert capsys.readouterr().err.count("\n") == 3
    assert main(["new", "lesson"]) == 0
    assert capsys.readouterr().out.splitlines()[6].startswith("7  Find the bug")
