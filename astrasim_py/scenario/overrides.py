"""Values that replace those of a scenario: ``--set KEY=VALUE``, and mappings from Python."""

from collections.abc import Sequence
from dataclasses import replace
from functools import reduce

from astrasim_py.core.document import Mark, Value, join, parse_document
from astrasim_py.core.errors import UsageError
from astrasim_py.core.fields import did_you_mean
from astrasim_py.scenario.variables import put, read_axes, split_path, unclear_topology


def apply_override(document: Value, text: str, keys: Sequence[str]) -> Value:
    """The document with one value replaced.

    `text`: ``topologies.ring.npus=16``; the value is read as YAML. `keys`: top-level keys. Raises UsageError: a path
    that leads nowhere.
    """
    path, equals, new_text = text.partition("=")
    if not equals or not path.strip():
        raise UsageError(f"--set {text}"[:200], "is not KEY=VALUE", "write e.g. --set topologies.ring.npus=16")
    return replace_value(document, path.strip(), new_text, keys, "--set")


def replace_value(document: Value, path: str, text: str, keys: Sequence[str], source: str) -> Value:
    """The document with the value at a path replaced by YAML text. `source`: the origin of the text, for places in
    errors. Raises
    UsageError: a path that leads nowhere.
    """
    place = f"{source} {path}"
    steps = split_path(path, document)
    if not steps:
        raise UsageError(source, "a key is empty", "write e.g. topologies.ring.npus")
    if unclear := unclear_topology(steps, document):
        raise UsageError(place, *unclear)
    if isinstance(document.data, dict) and steps[0] not in (*document.data, *keys):
        raise UsageError(place, f'"{steps[0]}" is not a key here', did_you_mean(str(steps[0]), keys))
    canonical = reduce(join, steps, "")
    value = parse_document(text, place, canonical) if text.strip() else Value(None, Mark(place), canonical)
    return put(document, steps, at_once(value, Mark(source)), place)


def refuse_swept(document: Value, paths: Sequence[str], source: str) -> None:
    """Raise UsageError for a value that has no effect, since the sweep has others. `paths`: of replaced values."""
    data = document.data if isinstance(document.data, dict) else {}
    axes = read_axes(data.get("sweep"), [])
    swept = {tuple(split_path(key, document)): key for axis in axes for key in axis.keys}
    for path in paths:
        key = swept.get(tuple(split_path(path, document)))
        if key is not None:
            raise UsageError(f"{source} {path}", "is swept, with values of its own", f'write "sweep.{key}=[…]"')


def at_once(value: Value, mark: Mark) -> Value:
    """The same with one place for everything: the command line and Python values have no lines."""
    data = value.data
    if isinstance(data, dict):
        data = {key: at_once(inner, mark) for key, inner in data.items()}
        return replace(value, data=data, mark=mark, key_marks=dict.fromkeys(data, mark))
    if isinstance(data, list):
        data = [at_once(inner, mark) for inner in data]
    return replace(value, data=data, mark=mark)
