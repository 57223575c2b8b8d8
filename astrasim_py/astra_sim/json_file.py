"""A foreign JSON file: of bounded size, an object at its top, and every key of that with its line."""

import difflib
import json
import os
from collections import Counter
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.files import read_regular

#: Bytes of a configuration file.
MAX_BYTES = 2**20
#: Characters between keys and values.
#: Characters of a value that messages show.
_SHOWN = 60


def did_you_mean(word: str, known: Iterable[str]) -> str:
    """``did you mean "x"?``, or nothing where no known word is close."""
    lowered = {k.lower().replace("_", "-"): k for k in known}
    close = difflib.get_close_matches(word.lower().replace("_", "-"), list(lowered), n=1, cutoff=0.6)
    return f'did you mean "{lowered[close[0]]}"?' if close else ""


def shown(value: object) -> str:
    """A value as messages show it."""
    text = json.dumps(value, ensure_ascii=False, default=str)
    return text if len(text) <= _SHOWN else text[:_SHOWN] + "…"


@dataclass(frozen=True, slots=True)
class Changes:
    """Values of keys in place of those of a file, and where they are written."""

    values: Mapping[str, Any] = field(default_factory=dict)
    place: str = ""


@dataclass(frozen=True, slots=True)
class JsonFile:
    """An object read from a file."""

    file: str
    data: dict
    lines: dict[str, int]  # line of every key of the object, from 1
    warnings: list[str]  # what a person should know of the file is added
    changed: Mapping[str, str] = field(default_factory=dict)  # key that stands elsewhere → its place

    def place(self, key: str = "") -> str:
        """``file:line: key``, or the file where the key is not there."""
        if key in self.changed:
            return self.changed[key]
        if key not in self.lines:
            return f"{self.file}: {key}" if key else self.file
        return f"{self.file}:{self.lines[key]}: {key}"

    def with_changes(self, changes: Changes) -> "JsonFile":
        """The object with other values of some keys."""
        places = {key: f"{changes.place}.{key}" for key in changes.values}
        return replace(self, data={**self.data, **changes.values}, changed=places)

    def error(self, key: str, problem: str, remedy: str = "") -> ScenarioError:
        return ScenarioError(self.place(key), problem, remedy)


def _not_finite(word: str) -> float:
    raise ValueError(f"{word} is not a number of JSON")


def read_json(path: str | os.PathLike, title: str, example: str, warnings: list[str]) -> JsonFile:
    """Read an object from a JSON file.

    `title`: what it should be, as in ``a system configuration``. `example`: what to write instead. `warnings`: a key
    that appears twice is added: the last counts, as it does for ASTRA-sim. Raises ScenarioError: missing, not a
    regular file, too large, no JSON, no object.
    """
    file = os.fspath(path)

    twice: list[str] = []

    def last_counts(pairs: list[tuple[str, object]]) -> dict:
        twice.extend(key for key, times in Counter(key for key, _ in pairs).items() if times > 1)
        return dict(pairs)

    data = read_regular(file, MAX_BYTES, ScenarioError, what=title, remedy=f"write {example}")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = data[: error.start].count(b"\n") + 1
        raise ScenarioError(f"{file}:{line}", "is not UTF-8", "save it as UTF-8") from None
    try:
        value = json.loads(text, object_pairs_hook=last_counts, parse_constant=_not_finite)
    except json.JSONDecodeError as error:
        problem = f"is not JSON: {error.msg}"
        raise ScenarioError(f"{file}:{error.lineno}:{error.colno}", problem, f"write {example}") from None
    except RecursionError:
        raise ScenarioError(file, "is too deeply nested", f"write {example}") from None
    except ValueError as error:  # numbers of thousands of digits, NaN
        reason = "a number is too long" if "digits" in str(error) else str(error).splitlines()[0]
        raise ScenarioError(file, f"is not JSON: {reason}", f"write {example}") from None
    if not isinstance(value, dict):
        raise ScenarioError(f"{file}:1", f"holds {shown(value)}, not an object", f"write {example}")
    lines = _key_lines(text)
    for key in twice:
        where = f"{file}:{lines[key]}" if key in lines else file
        warnings.append(f"{where}: the key {shown(key)} appears twice: the last counts, as it does for ASTRA-sim")
    return JsonFile(file, value, lines, warnings)


def _key_lines(text: str) -> dict[str, int]:
    """Line of every key of the outermost object of valid JSON."""
    lines: dict[str, int] = {}
    decode, position = json.JSONDecoder().raw_decode, text.index("{") + 1
    while text[position := _skipped(text, position)] != "}":
        key, end = decode(text, position)
        lines[key] = text.count("\n", 0, position) + 1
        _, position = decode(text, _skipped(text, end))
    return lines


def _skipped(text: str, position: int) -> int:
    """Where the next value of valid JSON begins."""
    while text[position] in " \t\r\n,:":
        position += 1
    return position
