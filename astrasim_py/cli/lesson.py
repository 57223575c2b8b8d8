"""Exercises of a class: the questions of lesson N; with QUESTION and ANSWER, check an answer and say why.

In a terminal, `new lesson N` asks the questions one by one.
"""

import argparse
import sys
import textwrap

from astrasim_py.cli.options import format_option
from astrasim_py.cli.output import printed
from astrasim_py.core.errors import EXIT_CHECK_FAILED, EXIT_OK, UsageError
from astrasim_py.core.point_names import shell_word


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("number", nargs="?", type=int, metavar="N", help="which; without it, list them")
    parser.add_argument("question", nargs="?", type=int, metavar="QUESTION", help="1, 2, …")
    parser.add_argument("answer", nargs="?", metavar="ANSWER", help='a number, e.g. 80.5 or "80.5 ms"')
    parser.add_argument("--solution", action="store_true", help="print all answers and the reasons")
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    from astrasim_py.validation.exercises import exercises

    lessons = exercises()
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
