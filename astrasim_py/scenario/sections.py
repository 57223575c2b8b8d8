"""Top-level keys of a scenario, each read by its model; errors of pydantic become places and plain sentences."""

from __future__ import annotations

from collections.abc import Mapping
from functools import cache
from typing import Any

from pydantic import TypeAdapter, ValidationError

from astrasim_py.core.document import Value, join
from astrasim_py.core.errors import AstraError, ScenarioError
from astrasim_py.scenario.quantities import shown
from astrasim_py.scenario.schema import Scenario

#: What the models of pydantic itself say, in our words: (problem, remedy).
_WORDS = {
    "string_type": ("{value} is not text", "put it in quotes"),
    "string_too_long": ("a text of more than {max_length} characters", "write less"),
    "string_too_short": ("an empty text", "write at least one character"),
    "bool_type": ("{value} is not true or false", "write true or false"),
    "bool_parsing": ("{value} is neither true nor false", "write true or false"),
    "int_type": ("{value} is not a whole number", "write e.g. 8"),
    "float_type": ("{value} is not a number", "write e.g. 1.5"),
    "finite_number": ("{value} is not a finite number", "write e.g. 1.5"),
    "tuple_type": ("{value} is not a list", "write [ … ]"),
    "dict_type": ("{value} is not a mapping", "write {{key: value}}"),
    "too_short": ("{actual_length} items are fewer than {min_length}", "write more"),
    "too_long": ("{actual_length} items are more than {max_length}", "write fewer"),
    "missing": ("a value is missing", "write it"),
    "literal_error": ("{value} is not {expected}", "write {expected}"),
}


@cache
def _adapter(key: str) -> TypeAdapter:
    return TypeAdapter(Scenario.model_fields[key].rebuild_annotation())


@cache
def default(key: str) -> Any:
    """The value of a top-level key that is not written."""
    return Scenario.model_fields[key].get_default(call_default_factory=True)


def tuples(plain: object) -> object:
    """Plain values with tuples for lists, as the strict models want them."""
    if isinstance(plain, Mapping):
        return {key: tuples(value) for key, value in plain.items()}
    if isinstance(plain, list | tuple):
        return tuple(tuples(value) for value in plain)
    return plain


def read_section(key: str, value: Value, errors: list[AstraError], *, binary: bool = False) -> Any:
    """The value of a top-level key, or None after adding to `errors` everything that is wrong with it.

    Parameters
    ----------
    key : str
    value : Value
    errors : list
    binary : bool
        Whether GB of network bandwidth means 2**30.
    """
    try:
        return read_plain(key, tuples(value.plain()), binary=binary)
    except ValidationError as error:
        errors += (_sentence(one, value) for one in error.errors(include_url=False))
        return None


def read_plain(key: str, plain: object, *, binary: bool = False) -> Any:
    """The same for plain values that are known to be right."""
    return _adapter(key).validate_python(plain, context={"binary": binary})


def _sentence(error: Mapping[str, Any], root: Value) -> ScenarioError:
    context = error.get("ctx", {})
    at = list(context.get("at", ()))
    loc = [step for step in error["loc"] if not (isinstance(step, str) and step.startswith("<"))]
    on_key = bool(at) and at[-1] == "@key"
    if on_key:
        at.pop()
    loc = [step for step in loc if step != "[key]"]
    here, above, last = root, None, ""
    for step in [*loc, *at]:
        below = here.get(step) or here.get(str(step))
        if below is None:
            continue  # a missing key, or a step of pydantic's own
        here, above, last = below, here, str(step)
    if on_key and above is not None:
        mark = above.key_marks.get(last, here.mark)
        place = f"{mark}: {join(above.path, last)}"
    else:
        place = here.place
    if error["type"] == "scenario":
        return ScenarioError(place, context["problem"], context["remedy"])
    problem, remedy = _WORDS.get(error["type"], (error["msg"].replace("{", "{{").replace("}", "}}"), ""))
    fields = {**context, "value": shown(error["input"])}
    return ScenarioError(place, problem.format_map(fields), remedy.format_map(fields))
