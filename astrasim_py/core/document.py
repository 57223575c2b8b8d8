"""A strict YAML reader with size limits; every value has its line and column.

Only the pure-Python loader is used (the C loader can crash the interpreter on deep nesting). It reads
mappings, lists, text, whole numbers, decimals, true/false and null: no tags, no sexagesimal numbers, no
octals, no dates, no ``yes``/``no``. Size, depth, aliases and the expanded number of values are capped, so
that no file can take long or much memory.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import yaml
from yaml.nodes import MappingNode, ScalarNode, SequenceNode
from yaml.reader import ReaderError

from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.files import open_regular

MAX_BYTES = 2**20
MAX_DEPTH = 32
MAX_ALIASES = 100
#: Maximum values as written: about one second of pure-Python parsing.
MAX_NODES = 20_000
#: Maximum values after every alias is expanded.
MAX_VALUES = 100_000
#: Longest number, in characters.
MAX_NUMBER = 32

_INT = re.compile(r"[-+]?(?:0|[1-9][0-9_]*)")
_FLOAT = re.compile(r"[-+]?(?:(?:0|[1-9][0-9_]*)(?:\.[0-9_]*)?|\.[0-9_]+)(?:[eE][-+]?[0-9]+)?")
_SPECIAL = {
    **dict.fromkeys(("", "~", "null", "Null", "NULL")),
    **dict.fromkeys(("true", "True", "TRUE"), True),
    **dict.fromkeys(("false", "False", "FALSE"), False),
    **{text: float(text.replace(".", "")) for text in (".nan", ".NaN", ".NAN", ".inf", "-.inf", "+.inf")},
}
_BYTE_ORDER_MARKS = ((b"\xef\xbb\xbf", "a byte-order mark"), (b"\xff\xfe", "UTF-16"), (b"\xfe\xff", "UTF-16"))
#: Remedies, by a part of PyYAML's text for it.
_YAML_REMEDIES = {
    "'\\t'": "indent with spaces, not tabs",
    "'@'": "put the text in quotes",
    "'`'": "put the text in quotes",
    "'%'": "put the text in quotes",
    "mapping values are not allowed": "put text that contains a colon in quotes",
    "expected ',' or": "close the bracket, or separate the items by commas",
}


class Mark(NamedTuple):
    """A place in a file; line and column count from 1, and 0 when there is none (``--set``)."""

    file: str
    line: int = 0
    column: int = 0

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}" if self.line else self.file


@dataclass(frozen=True, slots=True, eq=False)
class Value:
    """A value of a document and its place."""

    data: dict[str, Value] | list[Value] | str | int | float | bool | None  # keys are always text, as written
    mark: Mark  # where the value begins
    path: str = ""  # for people: ``topologies.ring.npus``, ``workload[0].all_reduce``
    key_marks: dict[str, Mark] = field(default_factory=dict)  # of a mapping: where each key is written
    raw: str = ""  # of a scalar: its text as written

    @property
    def place(self) -> str:
        """``file:line:col: path``."""
        return f"{self.mark}: {self.path}" if self.path else str(self.mark)

    def key_place(self, key: str) -> str:
        """The place of a key of this mapping (of the mapping itself if the key is absent)."""
        mark = self.key_marks.get(key)
        return f"{mark}: {join(self.path, key)}" if mark else self.place

    @property
    def mapping(self) -> dict[str, Value]:
        """The values by key; none of what is no mapping."""
        return self.data if isinstance(self.data, dict) else {}

    def get(self, *keys: str | int) -> Value | None:
        """The value at a path of keys, or None if a step is missing."""
        here = self
        for key in keys:
            items: Mapping[Any, Value] = dict(enumerate(here.data)) if isinstance(here.data, list) else here.mapping
            if key not in items:
                return None
            here = items[key]
        return here

    def plain(self) -> object:
        """The value without places: None, bool, int, float, str, list, dict."""
        if isinstance(self.data, dict):
            return {key: value.plain() for key, value in self.data.items()}
        if isinstance(self.data, list):
            return [value.plain() for value in self.data]
        return self.data

    def scalars(self) -> Iterator[Value]:
        """Every scalar in the value, in the order written."""
        if not isinstance(self.data, dict | list):
            yield self
            return
        for value in self.data.values() if isinstance(self.data, dict) else self.data:
            yield from value.scalars()


def join(path: str, key: str | int) -> str:
    """The path of an item below `path`."""
    if isinstance(key, int):
        return f"{path}[{key}]"
    return f"{path}.{key}" if path else key


class _Loader(yaml.BaseLoader):
    """PyYAML's reader, scanner, parser and composer, with caps; its constructor is not used."""

    def __init__(self, text: str, file: str, most: int) -> None:
        super().__init__(text)
        self.file, self.most = file, most
        self.depth = self.aliases = self.nodes = 0

    def compose_node(self, parent, index):
        event = self.peek_event()
        place = _mark_place(self.file, event.start_mark)
        self.nodes += 1
        if self.nodes > self.most:
            raise ScenarioError(place, f"more than {self.most:,} values", "split the file")
        if isinstance(event, yaml.AliasEvent):
            self.aliases += 1
            if self.aliases > MAX_ALIASES:
                raise ScenarioError(place, f"more than {MAX_ALIASES} aliases", "write the values out")
            return super().compose_node(parent, index)
        if event.tag is not None:
            tag = event.tag.replace("tag:yaml.org,2002:", "!!")
            raise ScenarioError(place, f'the tag "{tag}" is not allowed', "write the plain value")
        if self.depth >= MAX_DEPTH:
            raise ScenarioError(place, f"nested deeper than {MAX_DEPTH} levels", "flatten it")
        self.depth += 1
        node = super().compose_node(parent, index)
        self.depth -= 1
        return node


def read_document(path: str | os.PathLike) -> Value:
    """Read a YAML file.

    Raises ScenarioError: missing, not a regular file, larger than `MAX_BYTES`, or not the YAML described above.
    """
    file = os.fspath(path)
    with open_regular(file, ScenarioError, what="a YAML file") as stream:
        data = stream.read(MAX_BYTES + 1)
        size = max(len(data), os.fstat(stream.fileno()).st_size)  # files of /proc have no size
    if size > MAX_BYTES:
        raise ScenarioError(file, f"{size:,} bytes; a scenario has at most {MAX_BYTES:,}")
    return parse_document(data, file)


def parse_document(data: bytes | str, file: str, path: str = "", *, most: int = MAX_NODES) -> Value:
    """Read YAML text; see `read_document`.

    `file`: shown in places. `path`: path of the document's root, for places. `most`: values that it may hold as
    written.
    """
    text = data if isinstance(data, str) else _decode(data, file)
    if "\0" in text:
        raise ScenarioError(_at(file, text, text.index("\0")), "a NUL character", "delete it")
    loader = None
    try:
        loader = _Loader(text, file, most)
        root = loader.get_single_node()
    except yaml.MarkedYAMLError as error:
        place = _mark_place(file, error.problem_mark or error.context_mark)
        if "single document" in (error.context or ""):
            raise ScenarioError(place, "a second document begins here", "keep one; delete the ---") from None
        text = ", ".join(part for part in (error.context, error.problem) if part)
        raise ScenarioError(place, " ".join(text.split()) or "not YAML", _remedy(error)) from None
    except ReaderError as error:
        code = error.character if isinstance(error.character, int) else ord(error.character[:1])
        place = _at(file, text, error.position)
        raise ScenarioError(place, f"the character U+{code:04X} is not allowed", "delete it") from None
    except (ValueError, TypeError, OverflowError):  # PyYAML leaks these, e.g. for the escape \\U00110000
        raise ScenarioError(_mark_place(file, loader), "not YAML", "check quotes and escapes") from None
    if root is None:
        raise ScenarioError(f"{file}:1:1", "the file is empty", "begin with e.g. name: my_scenario")
    return _ValueBuilder(file, max(most, MAX_VALUES)).build(root, path)


def _decode(data: bytes, file: str) -> str:
    for mark, encoding in _BYTE_ORDER_MARKS:
        if data.startswith(mark):
            raise ScenarioError(f"{file}:1:1", f"the file begins with {encoding}", "save it as plain UTF-8")
    try:
        return data.decode("utf-8")
    except UnicodeDecodeError as error:
        before = data[: error.start].decode("utf-8")
        place = _at(file, before, len(before))
        problem = f"the byte 0x{data[error.start]:02x} is not UTF-8"
        raise ScenarioError(place, problem, "save the file as UTF-8") from None


def _at(file: str, text: str, position: int) -> str:
    before = text[:position].replace("\r\n", "\n")
    line, column = before.count("\n") + 1, len(before) - before.rfind("\n")
    return f"{file}:{line}:{column}"


def _mark_place(file: str, mark) -> str:
    return f"{file}:{mark.line + 1}:{mark.column + 1}" if mark is not None else file


def _remedy(error: yaml.MarkedYAMLError) -> str:
    if isinstance(error, yaml.composer.ComposerError):
        return "define the anchor above its use"
    remedies = (remedy for part, remedy in _YAML_REMEDIES.items() if part in (error.problem or ""))
    return next(remedies, "see YAML's rules for indentation, quotes and brackets")


class _ValueBuilder:
    """Turns PyYAML's nodes into values: checks keys, expands aliases and merges, counts values."""

    def __init__(self, file: str, most: int) -> None:
        self.file, self.most = file, most
        self.count = 0

    def mark(self, node) -> Mark:
        return Mark(self.file, node.start_mark.line + 1, node.start_mark.column + 1)

    def build(self, node, path: str, above: tuple = ()) -> Value:
        """The value of a node within the nodes `above`."""
        mark = self.mark(node)
        self.count += 1
        if self.count > self.most:
            problem = f"more than {self.most:,} values once aliases are written out"
            raise ScenarioError(str(mark), problem, "use fewer aliases")
        if len(above) > MAX_DEPTH:
            raise ScenarioError(str(mark), f"nested deeper than {MAX_DEPTH} levels", "flatten it")
        if isinstance(node, ScalarNode):
            return Value(self.scalar(node, mark, path), mark, path, raw=node.value)
        if any(node is outer for outer in above):
            raise ScenarioError(str(mark), "an alias refers to the value that contains it", "write it out")
        above = (*above, node)
        if isinstance(node, MappingNode):
            return self.mapping(node, mark, path, above)
        return Value([self.build(item, join(path, i), above) for i, item in enumerate(node.value)], mark, path)

    def scalar(self, node: ScalarNode, mark: Mark, path: str) -> str | int | float | bool | None:
        text = node.value
        if not text.isprintable() and any("\ud800" <= c <= "\udfff" for c in text):
            raise ScenarioError(f"{mark}: {path}", "half of a surrogate pair", "write the character itself")
        if node.style is not None:
            return text
        if text in _SPECIAL:
            return _SPECIAL[text]
        for pattern, convert in ((_INT, int), (_FLOAT, float)):
            if pattern.fullmatch(text):
                if len(text) > MAX_NUMBER:
                    place = f"{mark}: {path}" if path else str(mark)
                    raise ScenarioError(place, f"a number of {len(text)} characters", "write a smaller one")
                return convert(text)
        return text

    def mapping(self, node: MappingNode, mark: Mark, path: str, above: tuple) -> Value:
        data: dict[str, Value] = {}
        key_marks: dict[str, Mark] = {}
        merged: list[Value] = []
        for key_node, value_node in node.value:
            key_mark = self.mark(key_node)
            if not isinstance(key_node, ScalarNode):
                raise ScenarioError(str(key_mark), "a key that is not plain text", "write e.g. name: value")
            key = key_node.value
            self.scalar(key_node, key_mark, path)
            if key == "<<" and key_node.style is None:
                merged += self.merges(value_node, path, above)
                continue
            if key in data:
                first = key_marks[key]
                problem = f'the key "{_short(key)}" appears twice (first in line {first.line})'
                raise ScenarioError(f"{key_mark}: {join(path, _short(key))}", problem, "keep one of them")
            key_marks[key] = key_mark
            data[key] = self.build(value_node, join(path, key), above)
        for source in merged:
            for key, value in source.mapping.items():
                if key not in data:
                    data[key], key_marks[key] = value, source.key_marks[key]
        return Value(data, mark, path, key_marks)

    def merges(self, node, path: str, above: tuple) -> list[Value]:
        nodes = node.value if isinstance(node, SequenceNode) else [node]
        for item in nodes:
            if not isinstance(item, MappingNode):
                place = f"{self.mark(item)}: {join(path, '<<')}"
                raise ScenarioError(place, "<< merges mappings only", "write <<: *anchor")
        return [self.build(item, path, above) for item in nodes]


def _short(text: str, limit: int = 64) -> str:
    return text if len(text) <= limit else text[:limit] + "…"
