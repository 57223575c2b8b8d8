"""Topologies and groups of NPUs as they are written on a command line."""

import os
import re
from collections.abc import Mapping
from pathlib import Path

from astrasim_py.cli.spelling import spelled
from astrasim_py.core.document import parse_document, read_document
from astrasim_py.core.errors import TopologyError, UsageError
from astrasim_py.core.files import read_regular
from astrasim_py.topology.edge_list import MAX_YAML
from astrasim_py.topology.from_keys import build
from astrasim_py.topology.hardware import preset_names
from astrasim_py.topology.model import Topology
from astrasim_py.topology.shapes import SHAPES
from astrasim_py.topology.topology_files import SUFFIXES, read_edge_list

_SIZES = re.compile(r"[0-9]{1,9}(x[0-9]{1,9})*")
#: What the reader of edge lists advises where a rate is missing, and what it says then.
_BESIDE = re.compile(r"(bandwidth|latency): ([^,]+) beside file:")
_BESIDE_NOTHING = re.compile(r"there is no (bandwidth|latency)$")
#: Up to a comma that is in no brackets, which may be in others.
_SETTING = re.compile(r"(?:\[(?:[^][]|\[[^][]*\])*\]|\{(?:[^{}]|\{[^{}]*\})*\}|[^,])+")
#: Shapes that keys alone describe.
_SHAPES = ", ".join(name for name in SHAPES if name != "edge_list")


def topology_of(text: str, place: str = "--topology") -> Topology:
    """A topology: a file, alone or with ``,KEY=VALUE,…``, a preset, or ``SHAPE:SIZE,KEY=VALUE,…``.

    Raises TopologyError, ScenarioError, UsageError.
    """
    suffix = Path(text).suffix.lower()
    if suffix in (".yaml", ".yml"):
        return _yaml_file(text)
    if suffix in SUFFIXES:
        try:
            return read_edge_list(text)
        except TopologyError as error:
            raise TopologyError(error.place, error.problem, _beside(text, error.remedy)) from None
    if os.path.exists(text):
        raise UsageError(place, f'"{text}" is of no known kind', f"name a file that ends in {', '.join(SUFFIXES)}")
    try:
        return build(_written(text, place), place, written=True)
    except TopologyError as error:
        if text.lstrip().startswith("{"):
            raise
        if _BESIDE.search(error.remedy):
            raise TopologyError(error.place, error.problem, _beside(text, error.remedy)) from None
        key = error.place.rpartition(".")[2]
        remedy = re.sub(r'^write e\.g\. "(.*)"$', rf"write e.g. {key}=\1", error.remedy)
        # A list has commas of its own, so that it is written as a size.
        head = text.partition(",")[0].partition(":")[0]
        remedy = re.sub(r"\bdims: \[8, 8\]", f"{head}:8x8", remedy)
        remedy = spelled(remedy, {"npus": f"{head}:{{value}}"}, f'"{text},{{key}}={{value}}"')
        raise TopologyError(error.place, error.problem, remedy) from None


def _beside(text: str, remedy: str) -> str:
    """A remedy that adds a key beside ``file:`` as what is added to the text of a topology."""
    return _BESIDE.sub(rf'"{text},\1=\2"', remedy)


def drawable_topology(text: str, place: str) -> tuple[Topology, bool]:
    """As `topology_of`, but rates of links may be left out of a shape, or of a file; and whether they are given."""
    if Path(text).suffix.lower() in SUFFIXES:
        try:
            return topology_of(text, place), True
        except TopologyError as error:
            if not _BESIDE_NOTHING.search(error.problem):
                raise
        return topology_of(f"{text},bandwidth=1 GB/s,latency=1 us", place), False
    shape = text.partition(",")[0].partition(":")[0]
    keys = SHAPES[shape].model_fields if shape in SHAPES and not os.path.exists(text) else {}
    if "link_preset" not in keys or re.search(r"\b(bandwidth|latency|link_preset)\s*=", text):
        return topology_of(text, place), True
    return topology_of(f"{text},bandwidth=1 GB/s,latency=1 us", place), False


def _yaml_file(path: str) -> Topology:
    # An edge list may be far longer than a scenario, and has a reader of its own.
    if _is_edge_list(path):
        return read_edge_list(path)
    plain = read_document(path).plain()
    if isinstance(plain, Mapping) and isinstance(plain.get("topology"), Mapping):
        plain = plain["topology"]
    if not isinstance(plain, Mapping):
        raise TopologyError(path, "not a mapping", "write npus: and links:, or shape: and its keys")
    keys = {key: value for key, value in plain.items() if key not in ("placement", "name")}
    if "shape" not in keys and "preset" not in keys:
        raise TopologyError(path, "has neither shape nor preset", f"write e.g. shape: ring (shapes: {_SHAPES})")
    if isinstance(keys.get("file"), str):
        keys["file"] = str(Path(path).parent / keys["file"])
    return build(keys, path, name=str(plain.get("name") or Path(path).stem), written=True)


def network_beside(text: str) -> dict:
    """What the YAML file of a topology says beside it of the network: its keys ``network`` and ``nic``."""
    if Path(text).suffix.lower() not in (".yaml", ".yml") or _is_edge_list(text):
        return {}
    plain = read_document(text).plain()
    return {key: plain[key] for key in ("network", "nic") if isinstance(plain, Mapping) and plain.get(key)}


def _is_edge_list(path: str) -> bool:
    data = read_regular(path, MAX_YAML, TopologyError, what="a topology file", remedy="write it as CSV")
    keys = set(re.findall(rb"^([A-Za-z_]+)\s*:", data, re.MULTILINE))
    return b"links" in keys and keys <= {b"npus", b"links"}


def _written(text: str, place: str) -> dict:
    """Keys of ``SHAPE:SIZE,KEY=VALUE,…``, of a preset, or of a mapping in braces."""
    if text.lstrip().startswith("{"):
        plain = parse_document(text, place).plain()
        if not isinstance(plain, Mapping):
            raise UsageError(place, "is not a mapping", "write e.g. {shape: ring, npus: 8, …}")
        return dict(plain)
    head, _, settings = text.partition(",")
    shape, _, size = head.partition(":")
    if shape in preset_names("topology"):
        keys: dict = {"preset": shape}
        if size:
            raise UsageError(place, f"the preset {shape} has no size", "write its keys, as in ,nodes=2")
    elif shape in SHAPES:
        keys = {"shape": shape}
        if size:
            keys |= _size(shape, size, place)
    elif Path(head).suffix.lower() in SUFFIXES:
        keys = {"shape": "edge_list", "file": head}
    else:
        problem = f'"{shape}" is neither a file nor a shape nor a preset'
        raise UsageError(place, problem, f"write e.g. torus:8x8,bandwidth=50 GB/s,latency=500 ns (shapes: {_SHAPES})")
    for setting in filter(None, (part.strip() for part in _SETTING.findall(settings))):
        key, equals, value = setting.partition("=")
        if not equals:
            raise UsageError(place, f'"{setting}" sets nothing', "write KEY=VALUE")
        keys[key.strip()] = parse_document(value, place).plain()
    return keys


def _size(shape: str, size: str, place: str) -> dict:

    if not _SIZES.fullmatch(size):
        raise UsageError(place, f'"{size}" is no size', "write e.g. ring:8 or torus:8x8")
    numbers = [int(part) for part in size.split("x")]
    keys = SHAPES[shape].model_fields
    if "dims" in keys and shape != "product":
        return {"dims": numbers}
    if "npus" in keys and len(numbers) == 1:
        return {"npus": numbers[0]}
    required = [key for key, field in keys.items() if field.is_required() and key != "shape"]
    raise UsageError(place, f"{shape} has no size {size}", f"write its keys: {', '.join(required)}")
