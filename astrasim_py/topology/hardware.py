"""Hardware presets: nodes, links and NPUs of real systems, as data files that cite their sources.

Each JSON file in ``astrasim_py/data/hardware`` holds one preset::

    {"title": …, "source": [{"what": …, "where": …}, …],
     "topology": {"shape": …, …},        # as `from_keys.build` reads it; optional
     "link": {"bandwidth": …, "latency": …},   # optional
     "compute": {"npu": …, "peak": {"bf16": …}, "memory_bandwidth": …, "memory": …, "source": [...]}}   # optional

Bandwidths are those of one direction. Vendors often state both directions added up; the sources say what was
stated.
"""

from __future__ import annotations

import difflib
import json
from collections.abc import Mapping
from dataclasses import dataclass
from fractions import Fraction
from functools import cache
from pathlib import Path
from typing import Any

from astrasim_py.core.errors import TopologyError
from astrasim_py.core.units import parse_bandwidth, parse_compute_rate, parse_size, parse_time

_FOLDER = Path(__file__).parents[1] / "data" / "hardware"


@dataclass(frozen=True, slots=True, kw_only=True)
class Compute:
    """Compute rates and memory of one NPU.

    `peak`: dense operations per second by number format, e.g. ``bf16``; the training format comes first.
    """

    npu: str
    peak: Mapping[str, Fraction]
    memory_bandwidth: Fraction  # bytes per second
    memory: int  # bytes


@dataclass(frozen=True, slots=True, kw_only=True)
class Preset:
    """One piece of hardware."""

    name: str
    title: str
    source: tuple[tuple[str, str], ...]  # figure, and the datasheet or paper that states it
    topology: Mapping[str, Any] | None  # keys for `from_keys.build`, with units as text
    link: tuple[Fraction, int] | None  # bandwidth in bytes per second of one direction, latency in ps
    compute: Compute | None


def preset_names(kind: str = "") -> tuple[str, ...]:
    """Names of the presets, sorted; `kind` keeps those with a "topology", a "link" or a "compute" part."""
    names = sorted(file.stem for file in _FOLDER.glob("*.json"))
    return tuple(n for n in names if not kind or getattr(preset(n), kind) is not None)


def preset(name: object, place: str = "", kind: str = "") -> Preset:
    """The preset named `name`.

    Raises TopologyError: no such preset, or it has no part of this `kind`.
    """
    names = preset_names()
    if not isinstance(name, str) or name not in names:
        near = difflib.get_close_matches(str(name), names, 1)
        remedy = f'did you mean "{near[0]}"?' if near else f"write one of {', '.join(preset_names(kind))}"
        raise TopologyError(place, f'there is no preset "{str(name)[:60]}"', remedy)
    found = _read(name)
    if kind and getattr(found, kind) is None:
        raise TopologyError(
            place, f'the preset "{name}" has no {kind}', f"write one of {', '.join(preset_names(kind))}"
        )
    return found


@cache
def _read(name: str) -> Preset:
    data = json.loads((_FOLDER / f"{name}.json").read_text("utf-8"))
    where = f"{name}.json"
    link, compute = data.get("link"), data.get("compute")
    return Preset(
        name=name,
        title=data["title"],
        source=tuple((s["what"], s["where"]) for s in data["source"]),
        topology=data.get("topology"),
        link=link and (parse_bandwidth(link["bandwidth"], where), parse_time(link["latency"], where)),
        compute=compute
        and Compute(
            npu=compute["npu"],
            peak={key: parse_compute_rate(value, where) for key, value in compute["peak"].items()},
            memory_bandwidth=parse_bandwidth(compute["memory_bandwidth"], where),
            memory=parse_size(compute["memory"], where),
        ),
    )
