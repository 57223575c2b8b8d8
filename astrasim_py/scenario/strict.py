"""The base of every model of a scenario: strict, frozen, and helpful about what is wrong."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator
from pydantic_core import InitErrorDetails

from astrasim_py.scenario.quantities import did_you_mean, shown, wrong


class Strict(BaseModel):
    """No unknown keys, no conversions, no NaN, frozen."""

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True, allow_inf_nan=False, defer_build=True)

    @model_validator(mode="wrap")
    @classmethod
    def _with_suggestions(cls, value: Any, handler):
        """Say of an unknown key what it may have meant."""
        value = cls._normalized(value)
        if not isinstance(value, Mapping):
            raise wrong(f"{shown(value)} is not a mapping", f"write {cls._example()}")
        try:
            return handler(value)
        except ValidationError as error:
            known = [field.alias or name for name, field in cls.model_fields.items()]
            details: list[InitErrorDetails] = []
            for one in error.errors(include_url=False):
                kind: Any = one["type"]
                context = one.get("ctx", {})
                if kind == "extra_forbidden" and len(one["loc"]) == 1:
                    kind = wrong("is not a key here", did_you_mean(str(one["loc"][0]), known), ("@key",))
                elif kind == "missing" and len(one["loc"]) == 1:
                    name = str(one["loc"][0])
                    kind = wrong(f'"{name}" is missing', f"write {cls._example(name)}")
                elif kind == "scenario":
                    kind = wrong(context["problem"], context["remedy"], tuple(context["at"]))
                details.append(InitErrorDetails(type=kind, loc=one["loc"], input=one["input"], ctx=context))
            raise ValidationError.from_exception_data(error.title, details) from None

    @classmethod
    def _normalized(cls, value: Any) -> Any:
        """The value with shorthands written out."""
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
