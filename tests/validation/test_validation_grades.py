"""Grading a class: points by student and question, with the tolerance of a single answer; every wrong line is told."""

from __future__ import annotations

import csv
import io
import json
from fractions import Fraction

import pytest

from astrasim_py.cli.main import main
from astrasim_py.core.errors import UsageError
from astrasim_py.validation import grades
from astrasim_py.validation.exercises import exercises, judged

ALL = exercises()
CSV = """student,lesson,question,answer
ada,1,1,80.6 ms
ada,1,2,26.66

bob,1,1,about 80
bob,1,2,50
cyd,1,5,
"""
YAML = """ada:
  1: {1: 80.6 ms, 2: 26.66}
bob: {1: {1: about 80, 2: 50}}
cyd: {1: {5: }}
"""


@pytest.fixture
def known(monkeypatch):
    """Right answers without simulating them; tests of the exercises have that they are right."""
    right = {"predict": Fraction("80.56"), "run": Fraction(50), "assert": Fraction("2362.81")}
    calls: list[str] = []

    def answer_to(exercise, question):
        calls.append(question.step)
        return right[question.step]

    monkeypatch.setattr(grades, "answer_to", answer_to)
    return calls


def graded(tmp_path, capsys, text: str, *options: str, name: str = "class.csv") -> tuple[int, str, list[str]]:
    path = tmp_path / name
    path.write_text(text, "utf-8")
    code = main(["new", "lesson", "--grade", str(path), *options])
    ended = capsys.readouterr()
    return code, ended.out.replace(str(path), name), ended.err.replace(str(path), name).splitlines()


@pytest.mark.parametrize(("text", "name"), [(CSV, "class.csv"), (YAML, "class.yaml")], ids=["csv", "yaml"])
def test_points_by_student_and_question(tmp_path, capsys, known, text, name):
    code, out, err = graded(tmp_path, capsys, text, name=name)
    assert (code, err) == (0, []) and sorted(known) == ["predict", "run"], "each question is simulated once"
    rows = [line.split() for line in out.splitlines()]
    assert rows[0] == ["student", "points", "of", "1.1", "1.2", "1.3", "1.4", "1.5"]
    assert rows[2:5] == [
        ["ada", "1", "5", "1", "0", "–", "–", "–"],
        ["bob", "1", "5", "0", "1", "–", "–", "–"],
        ["cyd", "0", "5", "–", "–", "–", "–", "–"],
    ]
    said = " ".join(out.split())
    lines = {"class.csv": (3, 5), "class.yaml": (2, 3)}[name]
    assert f'{name}:{lines[0]}: ada, question 2 of lesson 1: "26.66". This is algbw' in said
    assert f'{name}:{lines[1]}: bob, question 1 of lesson 1: "about 80"' in said


def test_rows_are_the_same_in_every_form(tmp_path, capsys, known):
    _, text, _ = graded(tmp_path, capsys, CSV, "--json")
    rows = json.loads(text)
    assert [(row["student"], row["points"], row["lesson_1_question_2"]) for row in rows] == [
        ("ada", 1, 0),
        ("bob", 1, 1),
        ("cyd", 0, None),
    ]
    assert [wrong["place"] for row in rows for wrong in row["not_right"]] == ["class.csv:3", "class.csv:5"]
    table = list(csv.DictReader(io.StringIO(graded(tmp_path, capsys, CSV, "--format", "csv")[1])))
    assert [list(row) for row in table] == [list(row) for row in rows]
    assert [row["points"] for row in table] == ["1", "1", "0"]
    assert graded(tmp_path, capsys, CSV, "--format", "markdown")[1].count("\n") == 2 + len(rows)


def test_every_wrong_line_is_told(tmp_path, capsys):
    text = "student,lesson,question,answer\nada,1,1,80\nada,1,1,81\n,1,1,2\nbob,9,1,3\nbob,1,x,3\n"
    code, out, err = graded(tmp_path, capsys, text)
    assert (code, out) == (2, "") and len(err) == 4
    for line, part in zip(err, ("3: ada has answered", "4: names no student", '5: "9"', '6: "x"'), strict=True):
        assert line.startswith(f"astrasim-py: class.csv:{part}")


@pytest.mark.parametrize(
    ("text", "name", "problem"),
    [
        ("student,lesson,answer\nada,1,2\n", "a.csv", 'a.csv:1: there is no column "question"'),
        ("student,lesson,question,answer\n", "a.csv", "a.csv:1: has no row"),
        ("ada: [1]\n", "a.yaml", "a.yaml:1: has no key here"),
        ("ada:\n  1:\n    1: [2]\n", "a.yaml", "a.yaml:3: is no answer"),
        ("ada: {1: {1: 2}\n", "a.yaml", "a.yaml:"),
        ("{}\n", "a.yaml", "a.yaml: has no answer"),
    ],
)
def test_what_is_no_file_of_answers(tmp_path, capsys, text, name, problem):
    code, out, err = graded(tmp_path, capsys, text, name=name)
    assert (code, out, len(err)) == (2, "", 1) and err[0].startswith(f"astrasim-py: {problem}")


@pytest.mark.parametrize("options", [("1", "2"), ("--solution",), ("99",), ("2",)])
def test_what_does_not_go_with_a_class(tmp_path, capsys, options):
    path = tmp_path / "class.csv"
    path.write_text(CSV, "utf-8")
    assert main(["new", "lesson", *options, "--grade", str(path)]) == 2
    assert capsys.readouterr().err.count("\n") == 1


def test_the_tolerance_is_that_of_a_single_answer(known):
    question = ALL[0].questions[0]
    right = Fraction("80.56")
    for text in ("80.56", "79", "78.9", "82.2", "82.1 ms", "82100 us", "82100 µs"):
        answer = grades.Answer(place="a:1", student="ada", lesson=1, question=1, text=text)
        (found,) = grades.judgements([answer], ALL)
        number = Fraction(text.split()[0]) / (1000 if "s" in text and "ms" not in text else 1)
        assert found.is_right == judged(question, right, number)[0]


def test_missing_files_are_told():
    with pytest.raises(UsageError, match="cannot be read"):
        grades.read_answers("never.csv", ALL)
