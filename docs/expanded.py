"""What the site adds to pages: keys of scenarios, sources of presets, quirks of ASTRA-sim, reasons of exclusions.

The pages in this folder stay short; ``conf.py`` calls these functions when it reads them.
"""

import re
from collections.abc import Iterator, Mapping
from typing import Any

from astrasim_py.astra_sim.quirks import CORRECTED, QUIRKS
from astrasim_py.scenario.schema import json_schema
from astrasim_py.system.compatible import DELAYS, NIC, NOISE, SPEEDS, TABLE, Row
from astrasim_py.topology.hardware import preset_content, preset_names
from astrasim_py.training.aliases import FOREIGN_KEYS


def keys() -> str:
    """The keys of every part of a scenario, from the JSON Schema that ``list schema`` prints."""
    schema = json_schema()
    parts = [_part("A scenario", {**schema, "description": ""})]
    for name, model in schema["$defs"].items():
        model = next((one for one in model.get("anyOf", ()) if "properties" in one), model)
        if "properties" in model:
            words = re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name.rpartition("__")[2]).capitalize()
            parts.append(_part(words, model))
    return "\n\n".join(parts)


#: Types of JSON Schema in words.
_TYPES = {
    "array": "a list",
    "object": "keys",
    "integer": "a whole number",
    "number": "a number",
    "string": "text",
    "boolean": "`true`, `false`",
}


def _plain(value: object) -> object:
    return str(value).lower() if isinstance(value, bool) else value


def _part(name: str, model: Mapping[str, Any]) -> str:
    lines = [f"## {name}", "", _sentence(model.get("description", "")), "", "| key | values | |", "|---|---|---|"]
    for key, about in model["properties"].items():
        if key in FOREIGN_KEYS:
            continue
        default = about.get("default")
        said = [_sentence(about.get("description", ""))]
        if isinstance(default, bool | int | str) and default != "":
            said.append(f"default `{_plain(default)}`")
        elif key in model.get("required", ()):
            said.append("needed")
        values = ", ".join(dict.fromkeys(_values(about)))
        lines.append(f"| `{key}` | {values} | {'; '.join(filter(None, said))} |".replace("|  |", "| |"))
    return "\n".join(lines)


def _values(about: Mapping[str, Any]) -> Iterator[str]:
    """What a key takes, in a few words."""
    if "enum" in about or "const" in about:
        yield from (f"`{_plain(value)}`" for value in about.get("enum", [about.get("const")]))
    elif "$ref" in about:
        name = about["$ref"].rpartition("/")[2].rpartition("__")[2]
        if name != "Variable":
            yield re.sub(r"(?<=[a-z])(?=[A-Z])", " ", name).lower()
    elif "anyOf" in about or "oneOf" in about:
        for one in (*about.get("anyOf", ()), *about.get("oneOf", ())):
            yield from _values(one)
    elif about.get("examples"):
        yield f"e.g. `{about['examples'][0]}`"
    else:
        kinds = about.get("type", [])
        yield from (_TYPES[kind] for kind in ([kinds] if isinstance(kinds, str) else kinds) if kind in _TYPES)


def _sentence(text: str) -> str:
    return " ".join(text.split()).replace("``", "`").replace("|", r"\|")


def sources() -> str:
    """What each source says of which preset."""
    named: dict[tuple[str, str], list[str]] = {}
    for name in preset_names():
        for source in preset_content(name)["source"]:
            names = named.setdefault((source["what"], source["where"]), [])
            names += [] if name in names else [f"`{name}`"]
    rows = [f"| {', '.join(dict.fromkeys(names))} | {what} | {where} |" for (what, where), names in named.items()]
    return "\n".join(["| presets | figures | source |", "|---|---|---|", *rows])


def quirks() -> str:
    """What ASTRA-sim does, and what is done instead."""
    rows = [f"| `{name}` | {text.removeprefix('ASTRA-sim: ')} | {CORRECTED[name]} |" for name, text in QUIRKS.items()]
    return "\n".join(["| quirk | ASTRA-sim | corrected |", "|---|---|---|", *rows])


def exclusions() -> str:
    """What excludes what, by uses, without reasons: the list of docs/compatible.md."""
    lists: dict[str, list[str]] = {}
    for row in TABLE:
        uses = ", ".join(map(_shown, row.uses))
        lists.setdefault(f"Not with {uses}" if uses else "With everything", []).extend(map(_shown, row.features))
    lines = (f"* {heading}: {', '.join(dict.fromkeys(features))}" for heading, features in lists.items())
    return "\n".join(lines)


def reasons() -> str:
    """Why each of them; ``…`` stands for what depends on a problem."""
    rows = (f"| {_joined(row.uses)} | {_joined(row.features)} | {_why(row)} |" for row in TABLE if row.uses)
    return "\n".join(["| with | not | why |", "|---|---|---|", *rows])


def _joined(names: tuple[str, ...]) -> str:
    return ", ".join(map(_shown, names))


def _why(row: Row) -> str:
    return re.sub(r"{(\w|\.)+}", "…", row.problem)


def _shown(name: str) -> str:
    needed = name.removeprefix("no ")
    if needed.endswith(".*"):
        return f"other keys of `{needed[:-2]}`"
    shown = f"`{needed}`" if "." in needed or needed in (NIC, NOISE, DELAYS, SPEEDS) else needed
    return shown if needed == name else f"no {shown}"
