"""Points of a class: the answers of its students in one file, each judged as a single one is."""

import os
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

from astrasim_py.core.document import Value, read_document
from astrasim_py.core.errors import AstraError, UsageError
from astrasim_py.core.table_file import read_text, table_rows
from astrasim_py.validation.exercises import Exercise, answer_to, judged, typed

_WHAT = "a CSV of answers (student,lesson,question,answer), or YAML of them (student: {lesson: {question: answer}})"
_COLUMNS = ("student", "lesson", "question", "answer")


class WrongLines(UsageError):
    """Lines of a file of answers that are none. `lines`: all of them, for people."""

    def __init__(self, problems: Sequence[UsageError]) -> None:
        first = problems[0]
        super().__init__(first.place, first.problem, first.remedy)
        self.problems = problems

    def lines(self) -> list[str]:
        return [line for problem in self.problems for line in problem.lines()]


@dataclass(frozen=True, slots=True, kw_only=True)
class Answer:
    """What a student answered, and where it is written: ``file:line``. `text`: empty if there is none."""

    place: str
    student: str
    lesson: int
    question: int
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Judgement:
    """An answer, whether it is right, and why."""

    answer: Answer
    is_right: bool
    reason: str


def read_answers(path: str | os.PathLike, exercises: Sequence[Exercise]) -> list[Answer]:
    """Answers of a file, in its order, also empty ones.

    `path`: CSV with the columns ``student``, ``lesson``, ``question`` and ``answer``, or YAML (``.yaml``, ``.yml``) of
    the same: student → lesson → question → answer. Raises UsageError: it is neither, or lines name no student, lesson
    or question, or answer one that is answered already; every such line is told.
    """
    is_yaml = Path(path).suffix in (".yaml", ".yml")
    cells = _of_yaml(path) if is_yaml else table_rows(read_text(path, _WHAT), os.fspath(path), _WHAT, _COLUMNS)
    answers: dict[tuple[str, int, int], Answer] = {}
    problems: list[UsageError] = []
    for place, row in cells:
        try:
            answer = _answer(place, row, exercises)
            key = answer.student, answer.lesson, answer.question
            if key in answers:
                problem = f"{answer.student} has answered question {answer.question} of lesson {answer.lesson} already"
                raise UsageError(place, problem, f"keep this line, or {answers[key].place}")
            answers[key] = answer
        except UsageError as error:
            problems.append(error)
    if problems:
        raise WrongLines(problems)
    return list(answers.values())


def judgements(answers: Sequence[Answer], exercises: Sequence[Exercise]) -> list[Judgement]:
    """Every answer judged but the empty ones; each question is simulated once. What is no number is not right."""
    right: dict[tuple[int, int], Fraction] = {}
    found = []
    for answer in answers:
        if not answer.text:
            continue
        exercise = exercises[answer.lesson - 1]
        question = exercise.questions[answer.question - 1]
        key = answer.lesson, answer.question
        if key not in right:
            right[key] = answer_to(exercise, question)
        try:
            found.append((answer, *judged(question, right[key], typed(answer.text, question.unit))))
        except UsageError as error:
            found.append((answer, False, f"{error.place} {error.problem}"))
    return [Judgement(answer=answer, is_right=is_right, reason=reason) for answer, is_right, reason in found]


def points_by_student(
    answers: Sequence[Answer], judged_answers: Sequence[Judgement], exercises: Sequence[Exercise]
) -> list[dict[str, object]]:
    """A row for each student, in the order of the file: points, of how many questions, and 1, 0 or nothing for each
    question of the lessons that somebody answered.
    """
    lessons = sorted({answer.lesson for answer in answers})
    asked = [(lesson, q) for lesson in lessons for q in range(1, len(exercises[lesson - 1].questions) + 1)]
    points = {(j.answer.student, j.answer.lesson, j.answer.question): int(j.is_right) for j in judged_answers}
    rows: list[dict[str, object]] = []
    for student in dict.fromkeys(answer.student for answer in answers):
        by_question = {f"lesson_{lesson}_question_{q}": points.get((student, lesson, q)) for lesson, q in asked}
        total = sum(value for value in by_question.values() if value)
        rows.append({"student": student, "points": total, "questions": len(asked), **by_question})
    return rows


def _of_yaml(path: str | os.PathLike) -> list[tuple[str, dict[str, str]]]:
    rows = []
    try:
        document = read_document(path)
    except AstraError as error:
        raise UsageError(error.place, error.problem, error.remedy) from None
    for student, lessons in _parts(document):
        for lesson, questions in _parts(lessons):
            for question, answer in _parts(questions):
                place = f"{answer.mark.file}:{questions.key_marks[question].line}"
                if isinstance(answer.data, dict | list):
                    raise UsageError(
                        place, "is no answer, but several values", 'write a number, e.g. 80.5 or "80.5 ms"'
                    )
                text = "" if answer.data is None else answer.raw
                rows.append((place, dict(zip(_COLUMNS, (student, lesson, question, text), strict=True))))
    if not rows:
        raise UsageError(os.fspath(path), "has no answer", f"name {_WHAT}")
    return rows


def _parts(value: Value) -> Iterable[tuple[str, Value]]:
    if not isinstance(value.data, dict):
        raise UsageError(f"{value.mark.file}:{value.mark.line}", "has no key here", f"name {_WHAT}")
    return value.mapping.items()


def _answer(place: str, row: dict[str, str], exercises: Sequence[Exercise]) -> Answer:
    if not row["student"]:
        raise UsageError(place, "names no student", "write a name in the column student")
    lesson = _number(place, "lesson", row["lesson"], len(exercises))
    question = _number(place, "question", row["question"], len(exercises[lesson - 1].questions))
    return Answer(place=place, student=row["student"], lesson=lesson, question=question, text=row["answer"])


def _number(place: str, noun: str, text: str, last: int) -> int:
    if text.isascii() and text.isdigit() and len(text) < 4 and 1 <= int(text) <= last:
        return int(text)
    raise UsageError(place, f'"{text[:32]}" is no {noun}', f"write 1 to {last}")
