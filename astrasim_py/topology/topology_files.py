"""Topology files: the reader of each form, by the ending of the file's name."""

import os
from collections.abc import Sequence
from fractions import Fraction
from pathlib import Path
from typing import Protocol

from astrasim_py.core.errors import TopologyError
from astrasim_py.core.files import read_regular
from astrasim_py.topology.edge_list import MAX_YAML, NO_DEFAULTS, Links, content_lines, has_header, read_csv, read_yaml
from astrasim_py.topology.link_defaults import DefaultLatency, DefaultRate, LinkDefaults
from astrasim_py.topology.model import Topology
from astrasim_py.topology.spec import below

#: Largest files accepted, in bytes.
MAX_CSV, MAX_GRAPH = 2**26, 2**24
#: Endings of files that hold lines.
LINES = (".csv", ".txt", ".edges", ".edgelist")
#: Endings of all topology files.
SUFFIXES = (*LINES, ".yaml", ".yml", ".json", ".graphml")


class WrittenEdge(Protocol):
    """A link in a scenario."""

    src: int | str
    dst: int | str
    bandwidth: Fraction | None
    latency: int | None
    directions: str | None


def read_edge_list(path: str | os.PathLike, *, place: str = "", defaults: LinkDefaults = NO_DEFAULTS) -> Topology:
    """Read a topology file; the suffix gives its format (`SUFFIXES`).

    Raises TopologyError: with ``file:line: column``: not a regular file, too large, not UTF-8, ill-formed, a bad value,
    a self-loop, or a pair of NPUs without a path.
    """
    file = Path(os.fspath(path))
    suffix = file.suffix.lower()
    if suffix in LINES:
        text = _text(file, MAX_CSV)
        if has_header(content_lines(text, str(file))[0]):
            return read_csv(text, str(file), defaults)
        from astrasim_py.topology.plain_list import read_plain

        return read_plain(text, str(file), defaults)
    if suffix in (".yaml", ".yml"):
        return read_yaml(_text(file, MAX_YAML), str(file), defaults)
    if suffix == ".json":
        from astrasim_py.topology.node_link import read_json

        return read_json(_text(file, MAX_GRAPH), str(file), defaults)
    if suffix == ".graphml":
        from astrasim_py.topology.graphml import read_graphml

        return read_graphml(_text(file, MAX_GRAPH), str(file), defaults)
    problem = f'"{file.name}" is of no known kind'
    raise TopologyError(place or str(file), problem, f"name a file that ends in {', '.join(SUFFIXES)}")


def _text(file: Path, cap: int) -> str:
    """Contents of a regular file of bounded size."""
    data = read_regular(file, cap, TopologyError, what="a topology file", remedy="write fewer links")
    try:
        text = data.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        problem = f"0x{data[error.start]:02x} is not UTF-8"
        raise TopologyError(f"{file}: byte {error.start}", problem, "save the file as UTF-8") from None
    if "\0" in text:
        line = text.count("\n", 0, text.index("\0")) + 1
        raise TopologyError(f"{file}:{line}", "a NUL character", "delete it")
    return text


def edge_list(
    file: str | None,
    edges: Sequence[WrittenEdge] | None,
    place: str,
    *,
    bandwidth: DefaultRate | None,
    latency: DefaultLatency | None,
    directions: str | None,
    npus: int | None,
) -> Topology:
    """The topology of the keys of a shape `edge_list`; `place` is named in errors."""
    if file is not None and edges is not None:
        raise TopologyError(place, "an edge_list has either edges or a file", "write file: topology.csv, or edges: […]")
    both = None if directions is None else directions == "both"
    defaults = LinkDefaults(bandwidth=bandwidth, latency=latency, both=both, npus=npus, place=place)
    if file is not None:
        return read_edge_list(file, defaults=defaults)
    links, place_of_edges = Links(defaults), below(place, "edges")
    for i, edge in enumerate(edges or ()):
        rate, delay = links.or_default(edge.bandwidth, edge.latency)
        both_ways = (edge.directions or links.directions()) == "both"
        links.add(edge.src, edge.dst, rate, delay, f"{place_of_edges}[{i}]", both=both_ways)
    return links.topology(place_of_edges, "edge_list", npus)
