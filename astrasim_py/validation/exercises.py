"""Exercises for a class: questions about packaged lessons, whose answers are simulated."""

import re
import tempfile
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from pathlib import Path

import yaml

from astrasim_py.core.errors import UnitError, UsageError
from astrasim_py.core.units import PS_PER_NS, parse_bandwidth, parse_time
from astrasim_py.engine.simulation import simulate
from astrasim_py.preparation.prepare import prepare
from astrasim_py.runs.sweep import run_scenario
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import LoadedScenario, load_scenario

_DATA = Path(__file__).resolve().parents[1] / "data"
#: Share of the answer by which a typed number may differ, unless the question says another one.
_WITHIN = Fraction(2, 100)


@dataclass(frozen=True, slots=True, kw_only=True)
class Question:
    """A question with a number for an answer; see the head of ``data/exercises.yaml`` for the fields."""

    step: str
    ask: str
    unit: str
    why: str
    hints: list[Mapping]
    set: tuple[str, ...] = ()
    at: Mapping[str, object] | None = None
    over: Mapping[str, object] | None = None
    value: str = "time_ns"
    points: tuple[str, ...] = ()
    link: str | None = None
    number: int | None = None
    within: float = float(_WITHIN)


@dataclass(frozen=True, slots=True, kw_only=True)
class Exercise:
    title: str
    lesson: str
    minutes: int
    setting: str
    questions: tuple[Question, ...]


def exercises() -> list[Exercise]:
    """All exercises, in the order of the class."""
    items = yaml.safe_load((_DATA / "exercises.yaml").read_text("utf-8"))
    return [Exercise(**{**item, "questions": tuple(Question(**q) for q in item["questions"])}) for item in items]


def answer_to(exercise: Exercise, question: Question) -> Fraction:
    """The right answer, in the question's unit: simulated, or its `number`."""
    if question.number is not None:
        return Fraction(question.number)
    scenario = load_scenario(_DATA / "lessons" / f"{exercise.lesson}.yaml", [*question.set, "plots=[]", "engine=auto"])
    if question.link is not None:
        return _share_busy(scenario, question, question.link)
    with tempfile.TemporaryDirectory() as folder:
        rows = run_scenario(scenario, out=folder, figures=False).rows

    def value(where: Mapping[str, object]) -> Fraction:
        (row,) = (row for row in rows if all(row.sweep[key] == str(cell) for key, cell in where.items()))
        return Fraction(row[question.value])

    answer = value(question.at or {})
    if question.over is not None:
        return answer / value(question.over)
    return answer * PS_PER_NS / parse_time(f"1 {question.unit}") if question.value.endswith("_ns") else answer


def _share_busy(scenario: LoadedScenario, question: Question, link: str) -> Fraction:
    """Percent of the run in which a link is busy."""
    keys = dict(part.split("=") for part in question.points[0].split(","))
    (point,) = (point for point in expand(scenario) if keys.items() <= point.values.items())
    problem = prepare(point).problem
    records, topology = simulate(problem, level="links"), problem.topology
    ends = [*map(topology.link_name, range(topology.links))]
    row = records.link["link"].tolist().index(ends.index(link))
    return Fraction(100 * int(records.link["busy"][row]), records.makespan)


def typed(text: str, unit: str) -> Fraction:
    """The number that somebody typed, in `unit`; another unit of the same kind is converted.

    Raises UsageError: it is no number, or has a unit of another kind.
    """
    match = re.fullmatch(r"\s*([-+]?(?:\d{1,30}\.?\d{0,30}|\.\d{1,30})(?:[eE][-+]?\d{1,2})?)\s*(\S*)\s*", text)
    if match:
        number, its_unit = Fraction(match[1]), match[2]
        if its_unit in ("", unit):
            return number
        for parse in (parse_time, parse_bandwidth):
            try:
                return number * parse(f"1 {its_unit}") / parse(f"1 {unit}")
            except UnitError:
                continue
    raise UsageError(f'"{text}"'[:80], "is not an answer", f"write a number{unit and ' of ' + unit}, e.g. 2.5")


def judged(question: Question, right: Fraction, answer: Fraction) -> tuple[bool, str]:
    """Whether an answer is right, and a sentence that says why, or where a wrong one may come from."""

    def near(target: Fraction) -> bool:
        return abs(answer - target) <= Fraction(str(question.within)) * abs(target)

    if near(right):
        return True, question.why
    hint = next((hint["why"] for hint in question.hints if near(Fraction(str(hint["answer"])))), None)
    return False, hint or f"It is too {'large' if answer > right else 'small'}."
