"""What is imported when it is needed: a name stands for it until then, as ``module:name``."""

from collections.abc import Mapping
from importlib import import_module
from typing import Any

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo
from pydantic_core import CoreSchema, core_schema


def load(home: str) -> Any:
    """What stands in a module under a name, without a name the module itself; the module is imported now."""
    module, _, name = home.partition(":")
    return getattr(import_module(module), name) if name else import_module(module)


class ReadByNeed:
    """Of a field, in `Annotated`: ``reader(value, info)``, at `home`, is imported when the key is written; `schema` is
    its JSON Schema.
    """

    def __init__(self, home: str, schema: Mapping[str, Any]):
        self.home, self.schema = home, schema

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.with_info_plain_validator_function(lambda value, info: load(self.home)(value, info))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        return dict(self.schema)


class ByNeed:
    """Of a field, in `Annotated`: its model is imported when the key is written, or its JSON Schema is asked for.

    Parameters
    ----------
    home : str
        ``module:name`` of the model.
    """

    def __init__(self, home: str):
        self.home = home

    def __get_pydantic_core_schema__(self, source: object, handler: GetCoreSchemaHandler) -> CoreSchema:
        def validated(value: object, info: ValidationInfo) -> Any:
            return load(self.home).model_validate(value, context=info.context)

        return core_schema.with_info_plain_validator_function(validated)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> dict[str, Any]:
        model = load(self.home)
        model.model_rebuild()
        return handler(model.__pydantic_core_schema__)
