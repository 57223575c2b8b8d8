"""The base of all parameter models: strict, frozen, with helpful errors."""

import re
from collections.abc import Iterator, Mapping
from typing import Any, ClassVar, NamedTuple

from pydantic import BaseModel, ConfigDict, Field, ValidationError, ValidationInfo, model_validator
from pydantic_core import InitErrorDetails, PydanticCustomError

from astrasim_py.core.errors import AstraError, ScenarioError
from astrasim_py.core.fields import did_you_mean, shown, written, wrong

#: Problem and remedy in our words, by the type of a pydantic error.
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
    "greater_than": ("{value} is too little", "write more than {gt:g}"),
    "greater_than_equal": ("{value} is too little", "write at least {ge:g}"),
    "less_than": ("{value} is too much", "write less than {lt:g}"),
    "less_than_equal": ("{value} is too much", "write at most {le:g}"),
    "too_short": ("{actual_length} items are fewer than {min_length}", "write more"),
    "too_long": ("{actual_length} items are more than {max_length}", "write fewer"),
    "missing": ("a value is missing", "write it"),
    "literal_error": ("{value} is not {expected}", "write {expected}"),
}


class StrictModel(BaseModel):
    """No unknown keys, no conversions, no NaN, frozen.

    Built from Python, a wrong value raises `_error` at once. Validated with the context ``written``, it raises
    pydantic's `ValidationError`, which `mistakes` turns into sentences; a field with an alias then has that name only.
    """

    model_config = ConfigDict(
        extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True, populate_by_name=True
    )
    #: Error for a wrong value in Python code, and its place.
    _error: ClassVar[type[AstraError]] = ScenarioError
    _place: ClassVar[str] = ""
    #: Fields that only Python code can set.
    _python_only: ClassVar[tuple[str, ...]] = ()

    @model_validator(mode="wrap")
    @classmethod
    def _checked(cls, value: Any, handler, info: ValidationInfo):
        if isinstance(value, cls):
            return value
        from_python = info.context is None
        try:
            value = cls._normalized(tuples(value) if from_python else value, info)
            return value if isinstance(value, cls) else cls._with_suggestions(value, handler, written(info))
        except (ValidationError, PydanticCustomError) as error:
            if not from_python:
                raise
            if isinstance(error, PydanticCustomError):
                mistake = _mistake({"type": error.type, "loc": (), "ctx": error.context})
            else:
                mistake = next(mistakes(error))
            raise cls._error(mistake.path(cls._place), mistake.problem, mistake.remedy) from None

    @classmethod
    def _with_suggestions(cls, value: Any, handler, is_written: bool):
        """Suggest a known key for an unknown one."""
        if not isinstance(value, Mapping):
            raise wrong(f"{shown(value)} is not a mapping", f"write {cls._example()}")
        fields = {name: field.alias or name for name, field in cls.model_fields.items()}
        keys = [key for name, key in fields.items() if name not in cls._python_only]
        for key in value if is_written else ():
            if key in fields and key not in keys:
                raise wrong("is not a key here", did_you_mean(str(key), keys), (key, "@key"))
        try:
            model = handler(value)
        except ValidationError as error:
            details: list[InitErrorDetails] = []
            for mistake in error.errors(include_url=False):
                kind: Any = mistake["type"]
                context = mistake.get("ctx", {})
                if kind == "default_factory_not_called":
                    continue
                if kind == "extra_forbidden" and len(mistake["loc"]) == 1:
                    kind = wrong("is not a key here", did_you_mean(str(mistake["loc"][0]), keys), ("@key",))
                elif kind == "missing" and len(mistake["loc"]) == 1:
                    name = str(mistake["loc"][0])
                    kind = wrong(f'"{name}" is missing', f"write {cls._example(name)}")
                elif kind == "scenario":
                    kind = wrong(context["problem"], context["remedy"], tuple(context["at"]))
                details.append(InitErrorDetails(type=kind, loc=mistake["loc"], input=mistake["input"], ctx=context))
            raise ValidationError.from_exception_data(error.title, details) from None
        model._complete()
        return model

    def _complete(self) -> None:
        """Check fields against each other."""

    def differs(self) -> tuple[str, ...]:
        """Fields whose values differ from the default."""
        if not self.model_fields_set:
            return ()
        usual = type(self)()
        return tuple(key for key in type(self).model_fields if getattr(self, key) != getattr(usual, key))

    @classmethod
    def _normalized(cls, value: Any, info: ValidationInfo) -> Any:
        """The value with shorthands expanded."""
        return value

    @classmethod
    def _example(cls, name: str | None = None) -> str:
        if name is None:
            required = [n for n, f in cls.model_fields.items() if f.is_required()] or list(cls.model_fields)[:1]
            return "{" + ", ".join(f"{cls.model_fields[n].alias or n}: …" for n in required) + "}"
        for key, field in cls.model_fields.items():
            if name in (key, field.alias) and field.examples:
                return f"e.g. {name}: {field.examples[0]}"
        return f"{name}: …"


def example(value: str, **more):
    """A field with an example for messages and editors."""
    return Field(examples=[value], **more)


class Mistake(NamedTuple):
    """One error: the steps to its place, whether the key itself is wrong, the problem, and the remedy."""

    steps: tuple[str | int, ...]
    on_key: bool
    problem: str
    remedy: str

    def path(self, above: str = "") -> str:
        """``above.links[0].bandwidth``."""
        for step in self.steps:
            above += f"[{step}]" if isinstance(step, int) else f".{step}" if above else str(step)
        return above


def mistakes(error: ValidationError) -> Iterator[Mistake]:
    """Pydantic's errors as plain sentences."""
    return map(_mistake, error.errors(include_url=False))


def _mistake(error: Mapping[str, Any]) -> Mistake:
    context = error.get("ctx", {})
    location = list(context.get("at", ()))
    on_key = bool(location) and location[-1] == "@key"
    # Steps such as <list> and [key] are pydantic's own: branches of a union, keys of a mapping.
    steps = [step for step in error["loc"] if not (isinstance(step, str) and step.startswith("<")) and step != "[key]"]
    steps += location[:-1] if on_key else location
    if error["type"] == "scenario":
        return Mistake(tuple(steps), on_key, context["problem"], context["remedy"])
    fields = {**context, "value": shown(error["input"])}
    text = error["msg"].replace("{", "{{").replace("}", "}}")
    problem, remedy = (part.format_map(fields) for part in _WORDS.get(error["type"], (text, "")))
    if error["type"] == "tuple_type" and re.fullmatch(r"\d{1,9}(x\d{1,9})*", str(error["input"])):
        # As the command line has sizes of a topology.
        remedy = f"write [{str(error['input']).replace('x', ', ')}]"
    return Mistake(tuple(steps), on_key, problem, remedy)


def tuples(plain: object) -> object:
    """Plain values with tuples for lists, as strict models want them."""
    if isinstance(plain, Mapping):
        return {str(key): tuples(value) for key, value in plain.items()}
    if isinstance(plain, list | tuple):
        return tuple(tuples(value) for value in plain)
    return plain
