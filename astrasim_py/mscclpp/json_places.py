"""Where a value stands in the text of a JSON document, for messages."""

import json
from typing import TypeAlias

#: Keys and numbers from the top of a document to a value.
Path: TypeAlias = tuple[str | int, ...]

_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"


def unique(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object of some keys and values. Raises ValueError: a key appears twice."""
    value = dict(pairs)
    if len(value) < len(pairs):
        keys = [key for key, _ in pairs]
        twice = next(key for key in keys if keys.count(key) > 1)
        raise ValueError(f'the key "{twice[:40]}" appears twice')
    return value


def position_of(text: str, path: Path) -> tuple[int, int] | None:
    """Line and column, from 1, of the value at a path, or of the last object on the way; None without a text."""
    if not text:
        return None
    at = _skip(text, text.startswith("\ufeff"))
    for key in path:
        found = _child(text, at, key)
        if found is None:
            break
        at = found
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def _skip(text: str, at: int) -> int:
    while at < len(text) and text[at] in _SPACE:
        at += 1
    return at


def _child(text: str, at: int, key: str | int) -> int | None:
    """Where the value of a key, or the item of a number, of the value at a place begins; None: it is not there."""
    number, opening = 0, text[at]
    if opening not in "[{":
        return None
    at = _skip(text, at + 1)
    while text[at] not in "]}":
        name: object = number
        if opening == "{":
            name, at = _DECODER.raw_decode(text, at)
            at = _skip(text, _skip(text, at) + 1)
        if name == key:
            return at
        at = _skip(text, _DECODER.raw_decode(text, at)[1])
        at = _skip(text, at + (text[at] == ","))
        number += 1
    return None
