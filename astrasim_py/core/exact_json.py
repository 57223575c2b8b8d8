"""JSON with exact decimal numbers: the one writer of results, and what prints them."""

import json
from collections.abc import Mapping
from dataclasses import asdict, is_dataclass
from decimal import Decimal
from operator import index


def plain(value: Decimal) -> str:
    """A decimal number without exponent and without trailing zeros.

    >>> plain(Decimal("1.50E+3")), plain(Decimal("0.2500"))
    ('1500', '0.25')
    """
    text = format(value, "f")
    if "." in text:
        text = text.rstrip("0").rstrip(".")
    return "0" if text == "-0" else text


def json_text(value: object) -> str:
    """JSON with decimal numbers kept exact (`json.dumps` would turn them into floats); ASCII only. A dataclass is the
    object of its fields.

    Raises TypeError: a value that JSON cannot hold (also NaN and infinity).

    >>> json_text([Decimal("9007199254740993.125")])
    '[9007199254740993.125]'
    """
    return _json(value, "\n")


def _json(value: object, line: str | None) -> str:
    """JSON of a value; `line`: start of a line at its depth; None: all on one line."""
    if isinstance(value, Decimal):
        if not value.is_finite():
            raise TypeError(f"{value} is not a JSON number")
        return plain(value)
    if is_dataclass(value) and not isinstance(value, Mapping | type):
        value = asdict(value)
    if isinstance(value, Mapping):
        below = None if line is None else line + "  "
        brackets, items = "{}", [f"{json.dumps(str(key))}: {_json(v, below)}" for key, v in value.items()]
    elif isinstance(value, list | tuple) and all(type(item) is int for item in value):
        return json.dumps(value)
    elif isinstance(value, list | tuple):
        if not any(isinstance(item, Mapping | list | tuple) for item in value):
            line = None
        below = None if line is None else line + "  "
        brackets, items = "[]", [_json(item, below) for item in value]
    else:
        return json.dumps(value, allow_nan=False, default=index)
    if line is None or below is None or not items:
        return brackets[0] + ", ".join(items) + brackets[1]
    return brackets[0] + below + f",{below}".join(items) + line + brackets[1]


def json_line(value: object) -> str:
    """`json_text` on one line.

    >>> json_line({"b": [1, {"c": None}]})
    '{"b": [1, {"c": null}]}'
    """
    return _json(value, None)


def json_bytes(value: object) -> bytes:
    return (json_text(value) + "\n").encode()


def parse_json(text: str) -> object:
    """The inverse of `json_text`: numbers with a point become `decimal.Decimal`. Raises ValueError: it is no JSON, of
    which NaN and Infinity are no part, or a key appears twice.
    """
    return json.loads(text, parse_float=Decimal, parse_constant=_refuse, object_pairs_hook=unique_keys)


def unique_keys(pairs: list[tuple[str, object]]) -> dict[str, object]:
    """The object of its members, for ``object_pairs_hook``. Raises ValueError: a key appears twice."""
    members: dict[str, object] = {}
    for key, value in pairs:
        if key in members:
            raise ValueError(f'key "{key[:40]}" appears twice')
        members[key] = value
    return members


def _refuse(text: str) -> None:
    raise ValueError(f"{text} is not a number of JSON")
