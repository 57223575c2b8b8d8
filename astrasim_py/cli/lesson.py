"""Exercises of a class: the questions of lesson N; with QUESTION and ANSWER, check an answer and say why.

In a terminal, `new lesson N` asks the questions one by one. With --grade it judges the answers of a class: FILE is CSV
with the columns student, lesson, question and answer, or YAML, student: {lesson: {question: answer}}. It exits with 0
whether answers are right or not, with 2 if lines of FILE are no answers.
"""

import argparse
import sys
import textwrap
from collections.abc import Sequence
from typing import TYPE_CHECKING

from astrasim_py.cli.options import complain, format_option
from astrasim_py.cli.output import printed
from astrasim_py.core.errors import EXIT_CHECK_FAILED, EXIT_OK, UsageError
from astrasim_py.core.point_names import shell_word
from astrasim_py.core.units import number_of

if TYPE_CHECKING:
    from astrasim_py.validation.exercises import Exercise


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", nargs="?", type=int, metavar="N", help="which; without it, list them")
    parser.add_argument("question", nargs="?", type=int, metavar="QUESTION", help="1, 2, …")
    parser.add_argument("answer", nargs="?", metavar="ANSWER", help='a number, e.g. 80.5 or "80.5 ms"')
    parser.add_argument("--solution", action="store_true", help="print all answers and the reasons")
    parser.add_argument(
        "--grade", metavar="FILE", help="points of a class whose answers are in FILE, of lesson N or all"
    )
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    from astrasim_py.validation.exercises import exercises

    lessons = exercises()
    if args.grade is not None:
        return _grade(args, lessons)
    if args.number is None:
        if printed(args.format, [_row(number, exercise) for number, exercise in enumerate(lessons, 1)]):
            return EXIT_OK
        for number, exercise in enumerate(lessons, 1):
            print(f"{number}  {exercise.title} ({exercise.minutes} min, scenario {exercise.lesson})")
        return EXIT_OK
    exercise = _numbered(lessons, args.number, "lesson")
    if args.question is not None:
        question = _numbered(exercise.questions, args.question, "question")
        if args.answer is None:
            raise UsageError(
                f"new lesson {args.number} {args.question}", "an answer is missing", "write a number behind it"
            )
        return EXIT_OK if _check(exercise, question, args.answer, args) else EXIT_CHECK_FAILED
    if args.format != "text":
        questions = [_question_row(exercise, *pair, args.solution) for pair in enumerate(exercise.questions, 1)]
        about = _row(args.number, exercise) | {"setting": exercise.setting, "questions": questions}
        printed(args.format, about, questions)
        return EXIT_OK
    print(f"Lesson {args.number}: {exercise.title}\n\n{_filled(exercise.setting)}")
    print(f"Scenario: python -m astrasim_py new {exercise.lesson}")
    for number, question in enumerate(exercise.questions, 1):
        unit = f" [{question.unit}]" if question.unit else ""
        print("\n" + _filled(f"{number}. {question.step}: {question.ask}{unit}"))
        if question.points:
            first, *others = question.points
            names = (shell_word(name) for name in (f"{exercise.lesson}@{first}", *(f"@{point}" for point in others)))
            print(f"   python -m astrasim_py view {' '.join(names)} --open")
        if args.solution:
            print(_filled(f"{_shown(exercise, question)}: {question.why}"))
        elif sys.stdin.isatty():
            while (text := input("> ").strip()) and not _check(exercise, question, text):
                pass
    if not (args.solution or sys.stdin.isatty()):
        print(f"\nCheck an answer: python -m astrasim_py new lesson {args.number} QUESTION ANSWER")
    return EXIT_OK


def _grade(args: argparse.Namespace, lessons: Sequence["Exercise"]) -> int:
    """Print the points of a class; what is not right, and why, follows in text and is a cell of other forms."""
    from astrasim_py.validation.grades import judgements, points_by_student, read_answers

    if args.question is not None or args.solution:
        given = "--solution" if args.solution else "QUESTION"
        raise UsageError("--grade", f"{given} does not go with it", "write new lesson [N] --grade FILE")
    if args.number is not None:
        _numbered(lessons, args.number, "lesson")
    answers = read_answers(args.grade, lessons)
    counted = [answer for answer in answers if args.number in (None, answer.lesson)]
    if not counted:
        raise UsageError(args.grade, f"has no answer to lesson {args.number}", "leave N out to grade all lessons")
    if others := len(answers) - len(counted):
        complain([f"{args.grade}: {number_of(others, 'answer')} to other lessons left out"])
    judged = judgements(counted, lessons)
    rows = points_by_student(counted, judged, lessons)
    for row in rows:
        row["not_right"] = [
            {"place": wrong.answer.place, "answer": wrong.answer.text, "reason": wrong.reason}
            for wrong in judged
            if wrong.answer.student == row["student"] and not wrong.is_right
        ]
    if not printed(args.format, rows):
        print(_points_text(rows))
        for wrong in judged:
            if not wrong.is_right:
                where = f"{wrong.answer.place}: {wrong.answer.student}, question {wrong.answer.question}"
                print(_filled(f'{where} of lesson {wrong.answer.lesson}: "{wrong.answer.text}". {wrong.reason}'))
    return EXIT_OK


def _points_text(rows: list[dict]) -> str:
    """Students by questions, ``–`` for no answer, and the share of students who are right in the last row."""
    from astrasim_py.report.tables import text_table

    keys = [key for key in rows[0] if key.startswith("lesson_")]
    headings = ["student", "points", "of", *(".".join(key.split("_")[1::2]) for key in keys)]
    marks = [["–" if row[key] is None else str(row[key]) for key in keys] for row in rows]
    cells = [[r["student"], str(r["points"]), str(r["questions"]), *m] for r, m in zip(rows, marks, strict=True)]
    shares = [f"{100 * sum(row[key] or 0 for row in rows) / len(rows):.0f} %" for key in keys]
    return text_table(headings, [*cells, ["right", "", "", *shares]], [False] + [True] * (len(headings) - 1))


def _filled(text: str) -> str:
    return textwrap.fill(text, 100, subsequent_indent="   ")


def _numbered(items, number: int, kind: str):
    if not 1 <= number <= len(items):
        raise UsageError(f"{kind} {number}", "does not exist", f"write 1 to {len(items)}")
    return items[number - 1]


def _row(number: int, exercise) -> dict[str, object]:
    return {"number": number, "title": exercise.title, "minutes": exercise.minutes, "scenario": exercise.lesson}


def _question_row(exercise, number: int, question, solution: bool) -> dict[str, object]:
    """A question for programs, with its answer where `solution` asks for it."""
    from astrasim_py.validation.exercises import answer_to

    row = {"question": number, "step": question.step, "ask": question.ask, "unit": question.unit}
    answer = float(answer_to(exercise, question)) if solution else None
    return row | {"points": question.points, "answer": answer, "reason": question.why if solution else None}


def _check(exercise, question, text: str, args: argparse.Namespace | None = None) -> bool:
    """Say whether an answer is right, and why; `args`: of a command line that has it."""
    from astrasim_py.validation.exercises import answer_to, judged, typed

    value = typed(text, question.unit)
    is_right, reason = judged(question, answer_to(exercise, question), value)
    if args is not None and args.format != "text":
        row = {"lesson": args.number, "question": args.question, "answer": text, "right": is_right, "reason": reason}
        printed(args.format, row)
        return is_right
    print(_filled(f"{'Right' if is_right else 'Not yet'}. {reason}"))
    return is_right


def _shown(exercise, question) -> str:
    from astrasim_py.validation.exercises import answer_to

    return f"{float(answer_to(exercise, question)):.4g} {question.unit}".strip()
