"""The iterations of a recording, and the choice of one."""

import json
import re
from collections.abc import Callable, Sequence
from decimal import Decimal, InvalidOperation
from itertools import chain

from astrasim_py.core.errors import UsageError
from astrasim_py.pytorch.json_stream import chunks, unheard
from astrasim_py.pytorch.recording import RecordedStep

MARK = "ProfilerStep#"
_QUOTED = re.compile(f'"{MARK}')
_DECODER = json.JSONDecoder(strict=False, parse_float=str, parse_constant=str)
#: Characters before and after the name of a step within which its event begins and ends.
_REACH = 4096
#: Largest time, ns.
LONGEST = 2**61


def nanoseconds(value: object) -> int:
    """Exact nanoseconds of a time as a trace writes it: microseconds, an int or a text with decimals.

    Raises ValueError: not a number, not finite, or beyond 73 years.
    """
    if type(value) is int:
        ns = value * 1000
    elif not isinstance(value, str):
        raise ValueError(value)
    else:
        us, _, part = value.partition(".")
        try:
            ns = int(us + part.ljust(3, "0")) if len(part) <= 3 else _rounded(value)
        except ValueError:
            ns = _rounded(value)
    if not -LONGEST < ns < LONGEST:
        raise ValueError(value)
    return ns


def _rounded(value: str) -> int:
    """The nearest nanosecond of a number with an exponent or more than three decimals."""
    try:
        number = Decimal(value)
    except InvalidOperation:
        raise ValueError(value) from None
    if not number.is_finite() or number.adjusted() > 20:
        raise ValueError(value)
    return int((number * 1000).to_integral_value())


def encodable(text: str) -> str:
    """A text without halves of surrogate pairs, which JSON may hold and UTF-8 may not."""
    return text if text.isascii() else text.encode(errors="replace").decode()


def find_steps(source: str, tell: Callable[[float], None] = unheard) -> tuple[RecordedStep, ...]:
    """Annotations of iterations in a Kineto trace, in order of time, ns as the file counts; it is only searched.

    `source`, `tell`: as for `json_stream.elements`; errors as there.
    """
    marked: set[RecordedStep] = set()
    text, searched = "", 0  # `done`: how far the matches of `held` have been looked at
    for part in chain(chunks(source, tell), [""]):
        text += part
        limit = len(text) - (_REACH if part else 0)
        for match in _QUOTED.finditer(text, searched):
            if match.start() >= limit:
                break
            event = _around(text, match.start())
            if event is not None:
                marked.add(event)
        searched = max(searched, limit)
        cut = max(0, searched - _REACH)
        text, searched = text[cut:], searched - cut
    steps: list[RecordedStep] = []
    latest: dict[str, int] = {}  # end of the last step of each name: several threads may mark one step
    for step in sorted(marked, key=lambda step: (step.start, -step.end, step.name)):
        if step.start >= latest.get(step.name, step.start):
            steps.append(step)
            latest[step.name] = step.end
    return tuple(steps)


def _around(text: str, place: int) -> RecordedStep | None:
    """The step whose event holds the name at a place, if it is one of the host."""
    opening = place
    for _ in range(8):
        opening = text.rfind("{", max(0, place - _REACH), opening)
        if opening < 0:
            return None
        try:
            event, end = _DECODER.raw_decode(text, opening)
        except (ValueError, RecursionError):
            continue
        if end > place and str(event.get("name")).startswith(MARK):
            break
    else:
        return None
    if event.get("ph") != "X" or str(event.get("cat")).startswith("gpu"):
        return None
    try:
        start = nanoseconds(event.get("ts"))
        return RecordedStep(encodable(event["name"]), start, start + nanoseconds(event.get("dur")))
    except ValueError:
        return None  # the reader of the events refuses it


def choose_step(steps: Sequence[RecordedStep], wanted: str | int | None, source: str) -> RecordedStep | None:
    """The step asked for; None for the whole recording.

    `wanted`: a number, ``"median"`` (by duration; the first and the last do not count where there are others), or
    None. Raises UsageError: no such step.
    """
    if wanted is None or (wanted == "median" and not steps):
        return None
    if wanted == "median":
        inner = sorted(steps[1:-1] or steps, key=lambda step: (step.end - step.start, step.start))
        return inner[len(inner) // 2]
    matches = [step for step in steps if step.name == f"{MARK}{wanted}"]
    if not matches:
        known = ", ".join(step.name.removeprefix(MARK) for step in steps[:20]) or "none"
        raise UsageError(source, f"has no step {wanted}", f"its steps: {known}")
    return matches[0]
