"""Hardware presets: nodes, links and NPUs of real systems, as data files that cite their sources.

Each JSON file in ``astrasim_py/data/hardware`` holds one `Preset`. Bandwidths are those of one direction. Vendors often
state both directions added up; the sources say what was stated.
"""

import json
import os
from collections.abc import Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from pydantic import ConfigDict, Field, ValidationError, ValidationInfo, field_validator

from astrasim_py.core.by_need import ByNeed
from astrasim_py.core.errors import TopologyError
from astrasim_py.core.fields import ComputeRate, MemoryBandwidth, Size, Time, choice, did_you_mean, shown, wrong
from astrasim_py.core.files import read_regular
from astrasim_py.core.strict_model import StrictModel, example, mistakes, tuples
from astrasim_py.core.units import parse_bandwidth

if TYPE_CHECKING:
    from astrasim_py.topology.profile import LibraryProfile
else:
    LibraryProfile = Annotated[Any, ByNeed("astrasim_py.topology.profile:LibraryProfile")]

_FOLDER = Path(__file__).parents[1] / "data" / "hardware"
#: Bytes of a file of a profile.
_LARGEST = 2**20


class ExpandedMemory(StrictModel):
    """Slower memory for what a training does not fit into an NPU's own; `policy` says what goes there."""

    _place = "compute.expanded_memory"

    size: Size = example("480 GB")
    bandwidth: MemoryBandwidth = example("500 GB/s")
    latency: Time = 0
    policy: Annotated[str, choice("uniform", "placement")] = Field(
        default="uniform", description="uniform: an even part of everything; placement: the least touched kinds"
    )


class Compute(StrictModel):
    """Compute rates and memory of one NPU.

    `peak`: dense operations per second by number format, e.g. ``bf16``; the training format comes first. `sustained`:
    share of it that large matrix products reach; `attention`: share of the 16-bit peak by attention kernel.
    """

    model_config = ConfigDict(extra="ignore")  # its sources

    npu: str
    peak: dict[str, ComputeRate]
    memory_bandwidth: MemoryBandwidth
    memory: Size
    sustained: float = 1.0
    attention: dict[str, float] = Field(default_factory=dict)
    expanded_memory: ExpandedMemory | None = None


class LinkRates(StrictModel):
    """Bandwidth in one direction, and latency."""

    bandwidth: MemoryBandwidth
    latency: Time


class Source(StrictModel):
    """A figure, and the datasheet or paper that states it."""

    what: str
    where: str


class Preset(StrictModel):
    """One piece of hardware."""

    title: str
    sources: tuple[Source, ...] = Field(alias="source")
    topology: dict[str, Any] | None = None  # keys for `from_keys.build`, with units as text
    link: LinkRates | None = None
    compute: Compute | None = None
    collectives: LibraryProfile | None = None  # what a library's collectives cost, found from measured times

    @field_validator("collectives")
    @classmethod
    def _with_link(cls, profile: LibraryProfile | None, info: ValidationInfo) -> LibraryProfile | None:
        """The profile with the bandwidth of the links that its rates are for."""
        if profile is None or profile.link is not None:
            return profile
        keys = info.data.get("topology") or {}
        link = keys.get("nvlink_bandwidth", keys.get("bandwidth"))
        if link is None:
            raise wrong("rates without a link bandwidth", 'write e.g. link: "450 GB/s"')
        return profile.model_copy(update={"link": parse_bandwidth(link)})


def preset_names(kind: str = "") -> tuple[str, ...]:
    """Names of the presets, sorted; `kind` keeps those with a "topology", "link", "compute" or "collectives" part."""
    names = sorted(file.stem for file in _FOLDER.glob("*.json"))
    return tuple(n for n in names if not kind or kind in _parts(n))


def preset(name: str) -> Preset:
    """The preset named `name`; raises TopologyError: there is none."""
    if name not in preset_names():
        raise TopologyError("", f"there is no preset {shown(name)}", did_you_mean(str(name), preset_names()))
    return _read(name)


@cache
def _parts(name: str) -> frozenset[str]:
    return frozenset(preset_content(name))


@cache
def _read(name: str) -> Preset:
    return preset_of(preset_content(name), name)


def preset_content(name: str) -> dict[str, Any]:
    """The content of a preset's file: a shipped preset, or a name that ends in ``.json``. Raises TopologyError."""
    if not name.endswith(".json"):
        if not os.path.exists(_FOLDER / f"{name}.json"):
            raise TopologyError("", f"there is no preset {shown(name)}", did_you_mean(name, preset_names()))
        name = str(_FOLDER / f"{name}.json")
    content = read_regular(Path(name), _LARGEST, TopologyError, what="a preset", remedy="check the name")
    try:
        document = json.loads(content)
    except (ValueError, RecursionError) as error:
        raise TopologyError(name, f"is not JSON: {error}", "write the form of a preset") from None
    if not isinstance(document, dict):
        raise TopologyError(name, "is not a mapping", "write the form of a preset")
    return document


def preset_of(content: Mapping[str, Any], place: str) -> Preset:
    """The preset that a file's content describes; `place`: its name. Raises TopologyError: a wrong key or value."""
    try:
        return Preset.model_validate(tuples(content), context={"written": True})
    except ValidationError as error:
        mistake = next(mistakes(error))
        raise TopologyError(f"{place}: {mistake.path()}", mistake.problem, mistake.remedy) from None


def read_preset(name: str) -> Preset:
    """A shipped preset, or one of a ``.json`` file of the same form. Raises TopologyError: none, or a wrong one."""
    return preset_of(preset_content(name), name) if name.endswith(".json") else preset(name)


def profile(name: str) -> LibraryProfile:
    """The profile of a preset, as of `read_preset`.

    Raises TopologyError: there is no such preset or file, it is not of that form, or has no section ``collectives``.
    """
    collectives = read_preset(name).collectives
    if collectives is None:
        remedy = did_you_mean(name, preset_names("collectives"))
        raise TopologyError(name, 'has no section "collectives", measured times of a library', remedy)
    return collectives


def machine(name: str, npus: int) -> dict[str, Any]:
    """Keys of a topology of `npus` NPUs, made of the machines of a preset.

    Nodes of a DGX-like machine are whole, or, where that does not come out, equal and more than half full; a torus has
    as many dimensions as its preset, of sizes as near to each other as can be. Raises TopologyError: there is no such
    machine, or none of that size.
    """
    shape = preset(name).topology
    if shape is None:
        problem, remedy = f'the preset "{name}" has no network', did_you_mean(name, preset_names("topology"))
        raise TopologyError("", problem, remedy)
    if shape["shape"] == "dgx":
        most = shape["npus"]
        node = next(size for size in range(min(most, npus), 0, -1) if npus % size == 0)
        if node == npus or 2 * node > most:
            return {"preset": name, "nodes": npus // node, "npus": node}
        raise TopologyError("", f"{npus} NPUs do not fill equal nodes of {name}", f"take a multiple of {most}")
    if shape["shape"] == "torus":
        return {"preset": name, "dims": _near_equal(npus, len(shape["dims"]))}
    if shape["npus"] == npus:
        return {"preset": name}
    raise TopologyError("", f"{name} has {shape['npus']} NPUs", f"take {shape['npus']}, or another machine")


def _near_equal(number: int, count: int) -> list[int]:
    """Factors of a number as near to each other as can be, the largest first."""
    if count == 1:
        return [number]
    root = round(number ** (1 / count))
    factor = next(f for f in range(max(root, 1), 0, -1) if number % f == 0)
    return sorted([*_near_equal(number // factor, count - 1), factor], reverse=True)
