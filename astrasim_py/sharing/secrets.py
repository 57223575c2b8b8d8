"""Secret scales of time and size, and the search for strings that must not be in a file."""

import zlib
from collections.abc import Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from fractions import Fraction

import numpy as np

from astrasim_py.chakra.messages import attributes
from astrasim_py.chakra.schema import COLUMN_KINDS, INT_COLUMNS, MISSING, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.topology.model import Topology

#: Shortest string that is searched for.
SHORTEST = 4
#: Words of the format itself, and of topology files.
_WORDS = "\0".join([*COLUMN_KINDS, "pg_name", "src,dst,bandwidth,latency", "# npus"])


@dataclass(frozen=True)
class Scales:
    """Factors of times and sizes. Kept secret, they hide how fast and how large the original is.

    On a network of bandwidths times ``size / time`` and latencies times ``time`` everything takes `time` times as long.
    """

    time: float = 1.0
    size: float = 1.0

    @classmethod
    def draw(cls, rng: np.random.Generator) -> "Scales":
        """Both between 0.1 and 10, uniform in their logarithm."""
        return cls(*(10 ** rng.uniform(-1, 1, 2)).tolist())

    def workload(self, workload: Workload) -> Workload:
        """The workload with scaled times and sizes; times of remote memory are scaled as its sizes are."""
        scaled = {trace: self._trace(trace) for trace in dict.fromkeys(workload.traces)}
        return Workload(tuple(map(scaled.__getitem__, workload.traces)), workload.groups)

    def _trace(self, trace: ExecutionTrace) -> ExecutionTrace:
        compute = trace.type == NodeType.COMP
        columns = {}
        if (timed := compute & (trace.duration_micros > 0) & ~(trace.column("num_ops") > 0)).any():
            exact = trace.column("duration_ps")  # whole microseconds would be too coarse
            micros = trace.duration_micros.astype(np.int64) * 10**6
            trace = trace.replace(duration_ps=np.where(timed & (exact == MISSING), micros, exact))
        for name in ("duration_ps", "num_ops", "tensor_size", "comm_size", "coll_size"):
            if trace.has_column(name):
                values, by = trace.column(name), np.where(compute, self.time, self.size)
                scaled = np.maximum(np.rint(values * by), values > 0)
                columns[name] = np.where(values == MISSING, MISSING, scaled.astype(np.int64))
        return trace.replace(duration_micros=np.rint(trace.duration_micros * self.time).astype(np.uint64), **columns)

    def topology(self, topology: Topology) -> Topology:
        """The topology with scaled links and no names."""
        ratio = Fraction(self.size / self.time)
        return replace(
            topology,
            name="",
            latency_ps=np.rint(topology.latency_ps * self.time).astype(np.int64),
            bandwidths=tuple(Fraction(max(round(rate * ratio), 1)) for rate in topology.bandwidths),
        )


def edge_list(topology: Topology) -> bytes:
    """A topology as CSV, its switches numbers."""
    links = zip(topology.src, topology.dst, topology.bandwidth_class, topology.latency_ps, strict=True)
    rows = [f"{s},{d},{topology.bandwidths[rate]} B/s,{latency} ps\n" for s, d, rate, latency in links]
    return "".join([f"# npus {topology.npus}\nsrc,dst,bandwidth,latency\n", *rows]).encode()


def strings_of(workload: Workload) -> tuple[set[str], set[str]]:
    """All texts of a workload – names, groups, metadata, values of attributes, lists of inputs and outputs – and the
    names of its attributes.
    """
    texts, names = set(workload.groups), set()
    for trace in dict.fromkeys(workload.traces):
        texts |= {*trace.names, *trace.group_of()[1], trace.version}
        texts |= {text for entry in trace.metadata for text in (entry.name, entry.doc, *_texts(entry.value))}
        names |= {name for name in INT_COLUMNS if trace.has_column(name)}
        for row in range(len(trace)) if trace.raw is not None else ():
            node = trace.node(row)
            texts |= {text for side in (node.inputs, node.outputs) for _, text in side.ListFields()}
            for attribute in attributes(node.attr):
                texts |= {attribute.doc, *_texts(attribute.value)}
                names.add(attribute.name)
    return texts, names


def _texts(value: object) -> Iterable[str]:
    for item in value if isinstance(value, tuple | list) else (value,):
        if isinstance(item, str | bytes):
            yield item if isinstance(item, str) else item.decode("latin-1")


def surviving(strings: Iterable[str], files: Mapping[str, bytes]) -> list[tuple[str, str]]:
    """Strings of `SHORTEST` characters or more that are in a file, or in a gzip member of it: (string, file)."""
    by_head: dict[int, set[bytes]] = {}
    for text in strings:
        data = text.encode("utf-8", "surrogateescape")
        if len(text) >= SHORTEST and text not in _WORDS:
            by_head.setdefault(int.from_bytes(data[:4], "little"), set()).add(data)
    heads = np.array(sorted(by_head), dtype=np.uint32)
    matches = set()
    for name, content in files.items():
        for data in (content, *_members(content)):
            if len(data) < SHORTEST or not len(heads):
                continue
            bytes_ = np.frombuffer(data, dtype=np.uint8).astype(np.uint32)
            words = bytes_[:-3] | bytes_[1:-2] << 8 | bytes_[2:-1] << 16 | bytes_[3:] << 24
            for position in np.flatnonzero(np.isin(words, heads)).tolist():
                for text_bytes in by_head[int(words[position])]:
                    if data.startswith(text_bytes, position):
                        matches.add((text_bytes.decode("utf-8", "surrogateescape"), name))
    return sorted(matches)


def _members(data: bytes) -> list[bytes]:
    """Contents of the gzip members that begin anywhere in some bytes."""
    contents, start = [], data.find(b"\x1f\x8b\x08")
    while start >= 0:
        with suppress(zlib.error):
            contents.append(zlib.decompressobj(wbits=31).decompress(data[start:]))
        start = data.find(b"\x1f\x8b\x08", start + 1)
    return contents
