"""JSON documents whose errors have a place: reading of a text, and where a value stands in it."""

import json
import re
from typing import NoReturn, TypeAlias

from astrasim_py.core.errors import AlgorithmError
from astrasim_py.core.exact_json import unique_keys

#: Keys and numbers from the top of a document to a value.
Path: TypeAlias = tuple[str | int, ...]

_DECODER = json.JSONDecoder()
_SPACE = " \t\r\n"
_TOKEN = re.compile(r'("(?:[^"\\]|\\.)*")(\s*:)?|([{}\[\]])', re.DOTALL)
#: Escapes of half a character, without the other half.
_HALF = re.compile(
    r"(?i)(?<!\\)(?:\\\\)*"
    r"(?:\\ud[89ab][0-9a-f]{2}(?!\\ud[c-f])|(?<!\\ud[89ab][0-9a-f]{2})\\ud[c-f][0-9a-f]{2})"
)
_REMEDY = "write it again with its producer"


def text_of(data: bytes, place: str) -> str:
    """The text of a file. Raises AlgorithmError: it is empty, or not UTF-8."""
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise AlgorithmError(f"{place}:{line}", "is not UTF-8", "save it as UTF-8") from None
    if not text.strip():
        raise AlgorithmError(place, "is empty", "name an execution plan")
    if "\0" in text:
        line, column = _line(text, text.index("\0"))
        raise AlgorithmError(f"{place}:{line}:{column}", "has a zero byte, as in UTF-16", "save it as UTF-8")
    return text


def parsed(text: str, place: str) -> object:
    """The value of a JSON text. Raises AlgorithmError: it is no JSON, is too deep, or has a key twice or half a
    character."""
    half = _HALF.search(text) if "\\ud" in text or "\\uD" in text else None
    if half:
        line, column = _line(text, half.start())
        raise AlgorithmError(f"{place}:{line}:{column}", f"{half[0]} is half a character", "write its other half, too")
    try:
        return json.loads(text, object_pairs_hook=unique_keys)
    except json.JSONDecodeError as error:
        problem = f"is not JSON: {error.msg.removesuffix(' at')}"
        raise AlgorithmError(f"{place}:{error.lineno}:{error.colno}", problem, _REMEDY) from None
    except RecursionError:
        raise AlgorithmError(place, "is too deeply nested", _REMEDY) from None
    except ValueError as error:
        _refuse(text, place, str(error))


def _refuse(text: str, place: str, problem: str) -> NoReturn:
    """Refuse a text with a key twice, or with a number of more digits than Python reads."""
    opened: list[set[str]] = []
    for match in _TOKEN.finditer(text):
        word, colon, bracket = match.groups()
        if bracket and bracket in "{[":
            opened.append(set())
        elif bracket:
            opened.pop()
        elif colon:
            key = json.loads(word)
            if key in opened[-1]:
                line, column = _line(text, match.start())
                raise AlgorithmError(
                    f"{place}:{line}:{column}", f'has the key "{_shown(key)}" twice', "drop one of them"
                )
            opened[-1].add(key)
    number = re.search(r"\d{1000,}", text)
    line, column = _line(text, number.start() if number else 0)
    digits = f"has a number of {len(number[0])} digits" if number else f"is not JSON: {problem[:120]}"
    raise AlgorithmError(f"{place}:{line}:{column}", digits, _REMEDY)


def _shown(key: str) -> str:
    cut = key[:40]
    return (cut if cut.isprintable() else ascii(cut)[1:-1]) + ("…" if len(key) > 40 else "")


def _line(text: str, at: int) -> tuple[int, int]:
    return text.count("\n", 0, at) + 1, at - text.rfind("\n", 0, at)


def path_text(path: Path) -> str:
    """``gpus[0].threadblocks[1].ops[2]``."""
    keys = (f"[{key}]" if isinstance(key, int) else f".{_shown(key)}" for key in path)
    return "".join(keys).removeprefix(".")


def path_of(text: str) -> Path:
    """The path of `path_text`, of keys without dots and brackets."""
    return tuple(key or int(number) for key, number in re.findall(r"([^.\[\]]+)|\[(\d+)\]", text))


def position_of(text: str, path: Path) -> tuple[int, int] | None:
    """Line and column, from 1, of the value at a path, or of the last object on the way; None without a text."""
    if not text:
        return None
    at = _skip(text, 0)
    for key in path:
        found = _child(text, at, key)
        if found is None:
            break
        at = found
    return _line(text, at)


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
