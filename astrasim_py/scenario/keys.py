"""Top-level keys of a scenario, each read by its model."""

from __future__ import annotations

from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from astrasim_py.core.document import Value, join
from astrasim_py.core.errors import AstraError, ScenarioError
from astrasim_py.core.strict_model import Mistake, mistakes, tuples
from astrasim_py.scenario.schema import Scenario


@cache
def _adapter(key: str) -> TypeAdapter:
    return TypeAdapter(Scenario.model_fields[key].rebuild_annotation())


@cache
def default(key: str) -> Any:
    """The value of a top-level key that is not written."""
    return Scenario.model_fields[key].get_default(call_default_factory=True)


def read_key(key: str, value: Value, errors: list[AstraError], *, binary: bool = False) -> Any:
    """The value of a top-level key, or None after adding to `errors` everything that is wrong with it.

    `binary`: whether GB of network bandwidth means 2**30.
    """
    try:
        return read_plain(key, value.plain(), binary=binary)
    except ValidationError as error:
        errors += (placed(mistake, value) for mistake in mistakes(error))
        return None


def read_plain(key: str, plain: object, *, binary: bool = False) -> Any:
    """The same for plain values that are known to be right."""
    return _adapter(key).validate_python(tuples(plain), context={"binary": binary, "written": True})


def placed(mistake: Mistake, root: Value) -> ScenarioError:
    """A mistake at its place below `root`, or at the nearest place above it."""
    here, above, last = root, None, ""
    for step in mistake.steps:
        below = here.get(step) or here.get(str(step))
        if below is None:
            continue  # a missing key, or a step of pydantic's own
        here, above, last = below, here, str(step)
    place = here.place
    if mistake.on_key and above is not None:
        place = f"{above.key_marks.get(last, here.mark)}: {join(above.path, last)}"
    return ScenarioError(place, mistake.problem, mistake.remedy)
