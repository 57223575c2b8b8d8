"""ASTRA-sim's configuration files as frozen values: network, system, remote memory, per-node algorithms.

Keys that ASTRA-sim does not know, or knows and ignores, give a warning, never an error, as in ASTRA-sim.
"""

import os
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass, field, fields, replace
from fractions import Fraction
from math import isfinite, prod
from typing import Any

from astrasim_py.astra_sim.json_file import Changes, JsonFile, did_you_mean, read_json, shown
from astrasim_py.astra_sim.native_algorithms import Implementation
from astrasim_py.astra_sim.ns3 import refuse_ns3
from astrasim_py.core.document import Mark, Value, read_document
from astrasim_py.core.errors import AlgorithmError, ScenarioError
from astrasim_py.core.fields import NPU_CAP
from astrasim_py.core.units import INT64_MAX
from astrasim_py.system.machine_models import NO_MEMORY, MemoryModel
from astrasim_py.topology.routing import Dim

#: ASTRA-sim's words for a dimension.
KINDS = {"Ring": "ring", "FullyConnected": "fully_connected", "Switch": "switch"}
#: Bytes per second of ASTRA-sim's GB/s: of the network, and of memories.
NETWORK_GB, MEMORY_GB = 2**30, 10**9
MAX_DIMS = 32
NO_CHANGES = Changes()
#: Largest delay and count of the files; beyond it nothing could be simulated.
_MOST = 10**15

_NETWORK_EXAMPLE = "topology: [ Ring ], npus_count: [ 8 ], bandwidth: [ 50.0 ], latency: [ 500.0 ]"
_SYSTEM_EXAMPLE = '{"preferred-dataset-splits": 4, "all-reduce-implementation": ["ring"], …}'
_MEMORY_EXAMPLE = '{"memory-type": "NO_MEMORY_EXPANSION"}'


@dataclass(frozen=True, slots=True, kw_only=True)
class NetworkConfig:
    """A network YAML."""

    dims: tuple[Dim, ...]  # innermost first; ASTRA-sim takes a GB for 2^30 bytes here
    place: str = ""

    @property
    def sizes(self) -> tuple[int, ...]:
        return tuple(dim.size for dim in self.dims)

    @property
    def npus(self) -> int:
        return prod(self.sizes)


def _changed(document: Value, changes: Changes) -> Value:
    """A document with other values of some keys."""
    if not changes.values or not isinstance(document.data, dict):
        return document
    data = dict(document.data)
    for key, plain in changes.values.items():
        mark = Mark(f"{changes.place}.{key}")
        listed = plain if isinstance(plain, list | tuple) else [plain]
        data[key] = Value([Value(item, mark, raw=str(item)) for item in listed], mark)
    return replace(document, data=data)


def read_network(path: str | os.PathLike, warnings: list[str], changes: Changes = NO_CHANGES) -> NetworkConfig:
    """Read a network YAML; `changes`: values of its keys in place of those of the file.

    Raises ScenarioError: unreadable, a key missing, lists of unequal length, an unknown topology, a number out of
    range.
    """
    refuse_ns3(path)
    document = _changed(read_document(path), changes)
    place = os.fspath(path)
    if not isinstance(document.data, dict):
        raise ScenarioError(document.place, "is not a network configuration", f"write {_NETWORK_EXAMPLE}")
    _warn_of_unknown(document.data, _NETWORK_KEYS, document.key_place, warnings)
    columns: list[list] = []
    for key, read in _NETWORK_KEYS.items():
        if key not in document.data:
            close = [k for k in document.data if did_you_mean(k, (key,))]
            hint = f'"{close[0]}" is written {key}' if close else f"write {_NETWORK_EXAMPLE}"
            raise ScenarioError(place, f'the key "{key}" is missing', hint)
        value = document.data[key]
        items = value.data if isinstance(value.data, list) else [value]
        if not 1 <= len(items) <= MAX_DIMS:
            raise ScenarioError(value.place, f"{len(items)} dimensions", f"write 1 to {MAX_DIMS}")
        if columns and len(items) != len(columns[0]):
            problem = f"{len(items)} values for {len(columns[0])} dimensions of topology"
            raise ScenarioError(value.place, problem, "write one per dimension")
        columns.append([read(item, warnings) for item in items])
        if key == "npus_count" and prod(columns[-1]) > NPU_CAP:
            raise ScenarioError(items[0].place, f"{prod(columns[-1])} NPUs", f"write at most {NPU_CAP} in all")
    return NetworkConfig(dims=tuple(map(Dim, *columns)), place=place)


def _kind(item: Value, warnings: list[str]) -> str:
    if item.data not in tuple(KINDS):
        hint = did_you_mean(str(item.data), KINDS) or f"write {', '.join(KINDS)}"
        raise ScenarioError(item.place, f"{shown(item.plain())} is not a topology of ASTRA-sim", hint)
    return KINDS[item.data]


def _size(item: Value, warnings: list[str]) -> int:
    if type(item.data) is not int or not 2 <= item.data <= NPU_CAP:
        raise ScenarioError(item.place, f"{shown(item.plain())} NPUs", f"write a whole number, 2 to {NPU_CAP}")
    return item.data


def _bandwidth(item: Value, warnings: list[str]) -> Fraction:
    value = _yaml_number(item, "bandwidth", "GB/s")
    if not 0 < value <= INT64_MAX // NETWORK_GB:
        raise ScenarioError(item.place, f"{item.raw} GB/s is out of range", "write e.g. 50.0")
    return value * NETWORK_GB


def _latency_ps(item: Value, warnings: list[str]) -> int:
    value = _yaml_number(item, "latency", "ns")
    if not 0 <= value <= _MOST:
        raise ScenarioError(item.place, f"{item.raw} ns is out of range", "write e.g. 500.0")
    if (value * 1000).denominator != 1:
        warnings.append(f"{item.place}: {item.raw} ns is rounded to whole picoseconds")
    return round(value * 1000)


_NETWORK_KEYS: dict[str, Callable] = {
    "topology": _kind,
    "npus_count": _size,
    "bandwidth": _bandwidth,
    "latency": _latency_ps,
}


def _warn_of_unknown(keys: Iterable[str], known: Collection[str], place: Callable, warnings: list[str]) -> None:
    for key in keys:
        if key not in known:
            hint = did_you_mean(key, known) or "ASTRA-sim does not read it"
            warnings.append(f"{place(key)}: unknown key, ignored; {hint}")


def _yaml_number(item: Value, key: str, unit: str) -> Fraction:
    value = item.data
    if isinstance(value, bool) or not isinstance(value, int | float) or not isfinite(value):
        raise ScenarioError(item.place, f"{shown(item.plain())} is not a {key}", f"write a number of {unit}, e.g. 50.0")
    return Fraction(str(value))


#: Keys of older versions that ASTRA-sim 2.x reads past.
DEAD_KEYS = {
    "boost-mode": "ASTRA-sim 2.x ignores it",
    "inter-dimension-scheduling": "ASTRA-sim 2.x no longer reads it: chunks visit dimensions in ascending order",
    "intra-dimension-scheduling": "ASTRA-sim 2.x no longer reads it: chunks wait in order of arrival",
    "seprate-log": "ASTRA-sim 2.x no longer reads it",
    "separate-log": "ASTRA-sim 2.x no longer reads it",
}
#: Keys that ASTRA-sim reads for output that is not simulated time.
OUTPUT_KEYS = ("trace-enabled", "track-local-mem", "local-mem-trace-filename")


def _whole(json: JsonFile, key: str, value: object, least: int = 0) -> int:
    if isinstance(value, bool) or not isinstance(value, int | float):
        raise json.error(key, f"{shown(value)} is not a number", f"write a whole number from {least}")
    if not least <= value <= _MOST:
        raise json.error(key, f"{shown(value)} is out of range", f"write a whole number from {least}")
    if value != int(value):
        json.warnings.append(f"{json.place(key)}: {value} is cut to {int(value)}, as ASTRA-sim does")
    return int(value)


def _positive(json: JsonFile, key: str, value: object) -> int:
    return _whole(json, key, value, 1)


def _number(json: JsonFile, key: str, value: object) -> Fraction:
    if isinstance(value, bool) or not isinstance(value, int | float) or not 0 <= value <= _MOST:
        raise json.error(key, f"{shown(value)} is not a number in range", "write a number from 0")
    return Fraction(str(value))


def _flag(json: JsonFile, key: str, value: object) -> bool:
    if not isinstance(value, bool | int | float):
        raise json.error(key, f"{shown(value)} is not a switch", "write 0 or 1")
    return value != 0


def _words(json: JsonFile, key: str, value: object) -> tuple[Implementation, ...]:
    words = [value] if isinstance(value, str) else value
    if not isinstance(words, list) or not words or not all(isinstance(word, str) for word in words):
        raise json.error(key, f"{shown(value)} is not a list of implementations", 'write e.g. ["ring"]')
    if len(words) > MAX_DIMS:
        raise json.error(key, f"{len(words)} implementations", f"write at most {MAX_DIMS}")
    implementations = []
    for word in words:
        try:
            implementations.append(Implementation.parse(word, json.place(key)))
        except AlgorithmError as error:
            known = ("ring", "direct", "halvingDoubling", "doubleBinaryTree", "oneRing", "oneDirect")
            hint = did_you_mean(word, (*known, "oneHalvingDoubling"))
            raise json.error(key, error.problem, hint or error.remedy) from None
    return tuple(implementations)


def _prefix(json: JsonFile, key: str, value: object) -> str:
    prefixes = [value] if isinstance(value, str) else value
    if not isinstance(prefixes, list) or len(prefixes) != 1 or not isinstance(prefixes[0], str) or not prefixes[0]:
        remedy = 'write a list of exactly one prefix, e.g. ["algorithms/ring_8"]: it covers all dimensions'
        raise json.error(key, f"{shown(value)} is not one file prefix", remedy)
    return prefixes[0]


def _text(json: JsonFile, key: str, value: object) -> str:
    if not isinstance(value, str) or not value:
        raise json.error(key, f"{shown(value)} is not the name of a file", "write its path")
    return value


def _choice(*words: str) -> Callable:
    def read(json: JsonFile, key: str, value: object) -> str:
        if value not in words:
            hint = did_you_mean(str(value), words) or f"write one of {', '.join(words)}"
            raise json.error(key, f"{shown(value)} is unknown", hint)
        return value

    return read


def _key(read: Callable, default: object = None):
    """A key of the file: the reader of its value, and the default."""
    return field(default=default, metadata={"read": read})


@dataclass(frozen=True, slots=True, kw_only=True)
class SystemConfig:
    """A system JSON: its keys, with underscores. None where a key is absent and ASTRA-sim has no default.

    `…_implementation`: of each dimension. `…_implementation_custom`: file prefix of an injected algorithm, as written.
    """

    scheduling_policy: str = _key(_choice("LIFO", "FIFO", "EXPLICIT"), "LIFO")
    endpoint_delay: int = _key(_whole, 10)  # ns per message, before ``--injection-scale``
    active_chunks_per_dimension: int = _key(_positive, 1)
    preferred_dataset_splits: int | None = _key(_whole)
    all_reduce_implementation: tuple[Implementation, ...] | None = _key(_words)
    all_gather_implementation: tuple[Implementation, ...] | None = _key(_words)
    reduce_scatter_implementation: tuple[Implementation, ...] | None = _key(_words)
    all_to_all_implementation: tuple[Implementation, ...] | None = _key(_words)
    all_reduce_implementation_custom: str | None = _key(_prefix)
    all_gather_implementation_custom: str | None = _key(_prefix)
    reduce_scatter_implementation_custom: str | None = _key(_prefix)
    all_to_all_implementation_custom: str | None = _key(_prefix)
    per_node_custom_implementation: str | None = _key(_text)  # YAML file of workload node → file prefix, as written
    collective_optimization: str | None = _key(_choice("baseline", "localBWAware"))
    local_mem_bw: Fraction | None = _key(_number)  # GB/s; a GB is 10^9 bytes here
    peak_perf: Fraction | None = _key(_number)  # TFLOP/s
    roofline_enabled: bool = _key(_flag, False)
    replay_only: bool = _key(_flag, False)
    trace_enabled: bool = _key(_flag, False)
    track_local_mem: bool = _key(_flag, False)
    model_shared_bus: bool = _key(_flag, False)
    L: Fraction = _key(_number, Fraction(0))
    o: Fraction = _key(_number, Fraction(0))
    g: Fraction = _key(_number, Fraction(0))
    G: Fraction = _key(_number, Fraction(0))
    local_reduction_delay: int = _key(_whole, 1)
    #: Where each key is written, for messages.
    file: JsonFile = field(default=JsonFile("", {}, {}, []), compare=False, repr=False)

    def implementation(self, collective: str) -> tuple[Implementation, ...]:
        """What runs a collective (our name of it) in each dimension; empty where absent."""
        return getattr(self, f"{collective}_implementation", None) or ()

    def injected(self, collective: str) -> str | None:
        """The prefix injected for a collective (our name of it)."""
        return getattr(self, f"{collective}_implementation_custom", None)

    def at(self, name: str) -> str:
        """``file:line: key`` of a field."""
        return self.file.place(name.replace("_", "-"))


_SYSTEM_KEYS: dict[str, Callable] = {
    each.name.replace("_", "-"): each.metadata["read"] for each in fields(SystemConfig) if each.metadata
}


def read_system(path: str | os.PathLike, warnings: list[str], changes: Changes = NO_CHANGES) -> SystemConfig:
    """Read a system JSON; raises ScenarioError: unreadable, or a value that ASTRA-sim could not use."""
    json = read_json(path, "a system configuration", _SYSTEM_EXAMPLE, warnings).with_changes(changes)
    values: dict[str, Any] = {}
    for key, value in json.data.items():
        if key in DEAD_KEYS:
            warnings.append(f"{json.place(key)}: ignored: {DEAD_KEYS[key]}")
        elif key in OUTPUT_KEYS and value:
            warnings.append(f"{json.place(key)}: ignored: see --record for what can be recorded here")
        elif key not in OUTPUT_KEYS:
            _warn_of_unknown((key,), _SYSTEM_KEYS, json.place, warnings)
        if key in _SYSTEM_KEYS:
            values[key.replace("-", "_")] = _SYSTEM_KEYS[key](json, key, value)
    if values.get("model_shared_bus") and "endpoint_delay" in values:
        warnings.append(f"{json.place('model-shared-bus')}: takes the place of endpoint-delay")
    return SystemConfig(**values, file=json)


_MEMORY_KINDS = {
    "NO_MEMORY_EXPANSION": "none",
    "PER_NPU_MEMORY_EXPANSION": "per_npu",
    "PER_NODE_MEMORY_EXPANSION": "per_node",
    "MEMORY_POOL": "pool",
}


def read_memory(path: str | os.PathLike, npus: int, warnings: list[str], changes: Changes = NO_CHANGES) -> MemoryModel:
    """Read a remote memory JSON for a system of `npus` NPUs.

    Raises ScenarioError: unreadable, an unknown kind, a key missing, nodes that do not hold all NPUs.
    """
    json = read_json(path, "a remote memory configuration", _MEMORY_EXAMPLE, warnings).with_changes(changes)
    word = json.data.get("memory-type")
    if word not in tuple(_MEMORY_KINDS):
        problem = 'the key "memory-type" is missing' if word is None else f"{shown(word)} is unknown"
        hint = did_you_mean(str(word), _MEMORY_KINDS) or f"write one of {', '.join(_MEMORY_KINDS)}"
        raise json.error("memory-type", problem, hint)
    kind = _MEMORY_KINDS[word]
    known = ("memory-type", "remote-mem-latency", "remote-mem-bw", "num-nodes", "num-npus-per-node")
    _warn_of_unknown(json.data, known, json.place, warnings)
    if kind == "none":
        return NO_MEMORY

    def field(read: Callable, key: str):
        if key not in json.data:
            raise json.error(key, f"is missing, and {word} needs it", f'write e.g. "{key}": 100')
        return read(json, key, json.data[key])

    latency, bandwidth = field(_whole, "remote-mem-latency"), field(_number, "remote-mem-bw")
    if not bandwidth:
        raise json.error("remote-mem-bw", "is 0", "write GB/s, e.g. 100")
    per_node = 1
    if kind == "per_node":
        nodes, per_node = field(_positive, "num-nodes"), field(_positive, "num-npus-per-node")
        if nodes * per_node < npus:
            problem = f"{nodes} nodes of {per_node} NPUs do not hold the {npus} NPUs of the network"
            raise json.error("num-nodes", problem, "let num-nodes times num-npus-per-node be the number of NPUs")
    return MemoryModel(kind=kind, latency_ps=latency * 1000, bandwidth=bandwidth * MEMORY_GB, npus_per_node=per_node)


def read_per_node(path: str | os.PathLike) -> dict[int, str]:
    """Read a YAML map of workload node id → file prefix of an injected algorithm.

    Raises ScenarioError: unreadable, or not such a map.
    """
    document = read_document(path)
    if not isinstance(document.data, dict):
        raise ScenarioError(document.place, "is not a map", 'write e.g. 7: "algorithms/ring_8"')
    prefixes: dict[int, str] = {}
    for key, value in document.data.items():
        if not (key.isascii() and key.isdecimal() and len(key) < 20):
            raise ScenarioError(document.key_place(key), f"{shown(key)} is not a node id", "write a whole number")
        # A list of exactly one prefix is what the system JSON writes.
        prefix = value.data[0] if isinstance(value.data, list) and len(value.data) == 1 else value
        if not isinstance(prefix.data, str) or not prefix.data:
            raise ScenarioError(value.place, f"{shown(value.plain())} is not a file prefix", "write its path")
        prefixes[int(key)] = prefix.data
    return prefixes
