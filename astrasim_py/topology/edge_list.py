"""Topologies written link by link: CSV, YAML, networkx node-link JSON, or a list in a scenario.

**CSV.** A header ``src,dst,bandwidth,latency`` (in any order) with units in the cells, or columns that carry
their unit, such as ``bw_GiBps,lat_us``; one directed link a line. Lines that begin with ``#`` are comments,
and ``# npus N`` gives the number of NPUs (as does a column ``npus``). Vertices 0..N-1 are NPUs; larger
numbers and names are switches. Without N every number is an NPU and every name a switch.

**YAML.** ``npus: N`` (optional) and ``links:``, a list of mappings with the same keys; ``directions: both``
makes two links of one entry.

**JSON.** What ``networkx.node_link_data`` writes. A node is a switch if its attribute ``kind`` says so, else an
NPU by the rule above (``graph: {npus: N}``); an undirected graph has two links per edge.

Switches are numbered after the NPUs: first those with numbers, ascending, then those with names, in order of
first appearance. Parallel links are legal, self-loops are not.
"""

import csv
import io
import json
import os
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np
from pydantic import ValidationError

from astrasim_py.core.errors import ScenarioError, TopologyError, UnitError
from astrasim_py.core.fields import NPU_CAP
from astrasim_py.core.files import read_regular
from astrasim_py.core.strict_model import mistakes, tuples
from astrasim_py.core.units import INT64_MAX, parse_bandwidth, parse_time
from astrasim_py.topology.model import LINK_CAP, Computing, Topology, check_caps
from astrasim_py.topology.spec import Switches

#: Largest files accepted, in bytes.
MAX_CSV, MAX_JSON, MAX_YAML = 2**26, 2**24, 2**21
#: Maximum values in a YAML file: nine per link.
_MOST_VALUES = 2**19

_COLUMNS = {
    **dict.fromkeys(("src", "source", "from"), "src"),
    **dict.fromkeys(("dst", "dest", "destination", "target", "to"), "dst"),
    **dict.fromkeys(("bandwidth", "bw"), "bandwidth"),
    **dict.fromkeys(("latency", "lat"), "latency"),
}
_NEEDED = {
    "src": "src",
    "dst": "dst",
    "bandwidth": "bandwidth (cells such as 50 GB/s) or bw_GBps",
    "latency": "latency (cells such as 500 ns) or lat_ns",
}
_PARSERS: Mapping[str, Callable[[str], Any]] = {"bandwidth": parse_bandwidth, "latency": parse_time}
_NUMBER = re.compile(r"[0-9]{1,12}")
_NAME = re.compile(r"[A-Za-z_][A-Za-z0-9._:\[\]/-]{0,63}")
_PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_RATIO = re.compile(r"([0-9]{1,60})/([0-9]{1,60})")
_NPUS = re.compile(r"#\s*npus\s*[:= ]\s*(\S.*)")

#: Meaning (``src``, ``dst``, ``bandwidth``, ``latency``) → name as written, and its unit ("" if it is in the cell).
Columns = Mapping[str, tuple[str, str]]


def read_columns(place: str, names: Iterable[str], *, ignore: bool = False) -> Columns:
    """Meanings of columns or keys; unknown names are refused, or ignored."""
    columns: dict[str, tuple[str, str]] = {}
    for name in names:
        meaning = _meaning(place, name)
        if meaning is None:
            if ignore:
                continue
            raise TopologyError(f"{place}: {name}", "an unknown column", "write src,dst,bandwidth,latency (or npus)")
        quantity, unit = meaning
        if quantity in columns:
            raise TopologyError(f"{place}: {name}", f"a second column for {quantity}", "keep one of them")
        columns[quantity] = name, unit
    for needed, example in _NEEDED.items():
        if needed not in columns:
            raise TopologyError(place, f"there is no {needed}", f"add {example}")
    return columns


def _meaning(place: str, name: str) -> tuple[str, str] | None:
    if name in _COLUMNS:
        return _COLUMNS[name], ""
    stem, mark, suffix = name.partition("_")
    quantity = _COLUMNS.get(stem)
    if not mark or quantity is None or quantity not in _PARSERS:
        return None
    unit = suffix.removesuffix("Bps") + "B/s" if suffix.endswith("Bps") else suffix
    try:
        _PARSERS[quantity](f"1 {unit}")
    except UnitError:
        example = f"{stem}_GBps" if quantity == "bandwidth" else f"{stem}_us"
        problem = f'"{suffix}" is not a unit of {quantity}'
        raise TopologyError(f"{place}: {name}", problem, f"write e.g. {example}") from None
    return quantity, unit


class Links:
    """Builder of a topology from the rows of an edge list."""

    def __init__(self) -> None:
        #: Numbers and names of the ends of each link, its bandwidth and its latency in ps.
        self.src: list[int | str] = []
        self.dst: list[int | str] = []
        self.bandwidth: list[Fraction] = []
        self.latency: list[int] = []
        #: Vertices in order of first appearance.
        self.vertices: dict[int | str, None] = {}
        self._headers: dict[tuple[str, ...], Columns] = {}

    def vertex(self, token: object, place: str) -> int | str:
        text = str(token).strip() if isinstance(token, int | str) and not isinstance(token, bool) else ""
        if not _NUMBER.fullmatch(text) and not _NAME.fullmatch(text):
            problem = f'"{str(token)[:40]}" is not a vertex'
            raise TopologyError(place, problem, "write an NPU number or a switch name")
        key = int(text) if text.isdecimal() else text
        self.vertices[key] = None
        return key

    def add(self, src: object, dst: object, bandwidth: Fraction, latency: int, place: str, both: bool = False) -> None:
        a, b = self.vertex(src, f"{place}: src"), self.vertex(dst, f"{place}: dst")
        if a == b:
            raise TopologyError(place, f"a self-loop: {str(src).strip()} to {str(dst).strip()}", "delete the link")
        for x, y in ((a, b), (b, a)) if both else ((a, b),):
            self.src.append(x)
            self.dst.append(y)
            self.bandwidth.append(bandwidth)
            self.latency.append(latency)
        if len(self.src) > LINK_CAP:
            raise TopologyError(place, f"more than {LINK_CAP} links, the cap", "write fewer links")

    def add_row(self, row: Mapping[str, Any], place: str, *, both: bool = False, ignore: bool = False) -> None:
        names = tuple(row)
        if names not in self._headers:
            self._headers[names] = read_columns(place, names, ignore=ignore)
        columns = self._headers[names]
        values: dict[str, Any] = {}
        for quantity in _PARSERS:
            name, unit = columns[quantity]
            cell, cell_place = row[name], f"{place}: {name}"
            if isinstance(cell, bool) or not isinstance(cell, str | int | float | Decimal):
                raise TopologyError(cell_place, f"{cell!r} is not a {quantity}", "write a number with its unit")
            try:
                values[quantity] = _quantity(quantity, unit, str(cell).strip())
            except UnitError as error:
                raise TopologyError(cell_place, error.problem, error.remedy) from None
        self.add(row[columns["src"][0]], row[columns["dst"][0]], **values, place=place, both=both)

    def topology(self, place: str, name: str, npus: int | None) -> Topology:
        """The topology of the links so far, numbered as the module's docstring says."""
        if npus is None:
            npus = 1 + max((k for k in self.vertices if isinstance(k, int)), default=-1)
            if npus == 0:
                raise TopologyError(place, "there are no NPUs", "number the NPUs from 0")
        switches: list[int | str] = [*sorted(k for k in self.vertices if isinstance(k, int) and k >= npus)]
        switches += [k for k in self.vertices if isinstance(k, str)]
        numbers = {key: npus + i for i, key in enumerate(switches)}
        return self.numbered(place, name, npus, numbers, [str(key) for key in switches])

    def numbered(
        self, place: str, name: str, npus: int, numbers: Mapping[int | str, int], switches: Sequence[str]
    ) -> Topology:
        """The topology of the links so far; a vertex without an entry in `numbers` is an NPU of that number."""
        check_caps(npus, len(self.src), 0, place)
        rates = {rate: code for code, rate in enumerate(dict.fromkeys(self.bandwidth))}
        return Topology.create(
            name=name,
            shape="edge_list",
            npus=npus,
            vertices=npus + len(switches),
            src=np.array([numbers.get(key, key) for key in self.src], dtype=np.int64),
            dst=np.array([numbers.get(key, key) for key in self.dst], dtype=np.int64),
            latency_ps=np.array(self.latency, dtype=np.int64),
            bandwidth_class=np.array([rates[rate] for rate in self.bandwidth], dtype=np.int64),
            bandwidths=list(rates),
            switches=tuple((n, None) for n in switches),
            place=place,
        )


@lru_cache(2**16)
def _quantity(quantity: str, unit: str, text: str) -> Fraction | int:
    """Bandwidth in bytes per second or latency in ps, exact; raises UnitError."""
    if not unit:
        return _PARSERS[quantity](text)
    ratio = _RATIO.fullmatch(text)
    if ratio and quantity == "bandwidth" and int(ratio[2]):
        value = Fraction(int(ratio[1]), int(ratio[2])) * parse_bandwidth(f"1 {unit}")
        if 0 < value <= INT64_MAX:
            return value
    if not _PLAIN.fullmatch(text):
        raise UnitError("", f'"{text[:40]}" is not a number', f"the column is in {unit}: write e.g. 50")
    return _PARSERS[quantity](f"{text} {unit}")


def npu_count(value: object, place: str) -> int:
    """Read a number of NPUs; raises TopologyError: not a whole number, less than 1 or more than the cap."""
    text = str(value).strip()
    if isinstance(value, bool) or not re.fullmatch(r"[+-]?[0-9]{1,30}", text):
        raise TopologyError(place, f'"{text[:40]}" is not a number of NPUs', "write e.g. 64")
    count = int(text)
    if count < 1:
        raise TopologyError(place, f"{count} NPUs are less than 1", f"write 1 to {NPU_CAP}")
    check_caps(count, 0, 0, place)
    return count


def read_edge_list(path: str | os.PathLike, *, place: str = "") -> Topology:
    """Read a topology file; the suffix ``.csv``, ``.yaml``, ``.yml`` or ``.json`` gives its format.

    Raises TopologyError: with ``file:line: column``: not a regular file, too large, not UTF-8, ill-formed, a bad value,
    a self-loop, or a pair of NPUs without a path.
    """
    file = Path(os.fspath(path))
    yaml = MAX_YAML, read_yaml
    kinds = {".csv": (MAX_CSV, read_csv), ".yaml": yaml, ".yml": yaml, ".json": (MAX_JSON, read_json)}
    if file.suffix.lower() not in kinds:
        problem = f'"{file.name}" is of no known kind'
        raise TopologyError(place or str(file), problem, "name a .csv, .yaml or .json file")
    cap, read = kinds[file.suffix.lower()]
    return read(_text(file, cap), str(file))


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


def read_csv(text: str, file: str = "") -> Topology:
    """Read an edge list in CSV form (see the module's docstring); `file` is named in errors."""
    npus: int | None = None
    where = f"{file}:1"

    def lines() -> Iterator[str]:
        nonlocal npus
        for number, line in enumerate(io.StringIO(text, newline=None), start=1):
            if not line.lstrip().startswith("#"):
                yield line
                continue
            count = _NPUS.match(line.strip())
            if count:
                npus = _agree(npus, count[1], f"{file}:{number}: npus")
            yield "\n"  # keeps the reader's count of lines

    links, header = Links(), None
    reader = csv.reader(lines(), strict=True)
    try:
        for row in reader:
            if not row or not any(cell.strip() for cell in row):
                continue
            where = f"{file}:{reader.line_num}"
            if header is None:
                header = [cell.strip() for cell in row]
                read_columns(where, [name for name in header if name != "npus"])
                continue
            if len(row) != len(header):
                raise TopologyError(where, f"{len(row)} cells under {len(header)} columns", f"write {','.join(header)}")
            cells = dict(zip(header, row, strict=True))
            count = cells.pop("npus", "").strip()
            if count:
                npus = _agree(npus, count, f"{where}: npus")
            links.add_row(cells, where)
    except csv.Error as error:
        raise TopologyError(f"{file}:{reader.line_num}", f"not CSV: {error}", "check the quotes") from None
    if header is None:
        raise TopologyError(where, "the file is empty", "begin with src,dst,bandwidth,latency")
    return links.topology(file, Path(file).stem, npus)


def _agree(before: int | None, value: str, place: str) -> int:
    count = npu_count(value, place)
    if before is not None and before != count:
        raise TopologyError(place, f"{count} NPUs here, {before} above", "say it once")
    return count


def read_yaml(text: str, file: str = "") -> Topology:
    """Read an edge list in YAML form (see the module's docstring); `file` is named in errors."""
    from astrasim_py.core.document import parse_document

    try:
        root = parse_document(text, file, most=_MOST_VALUES)
    except ScenarioError as error:
        raise TopologyError(*error.args) from None
    if not isinstance(root.data, dict):
        raise TopologyError(root.place, "not a mapping", "write npus: and links:")
    for key in root.data:
        if key not in ("npus", "links"):
            raise TopologyError(root.key_place(key), "an unknown key", "write npus: and links:")
    rows, count = root.get("links"), root.get("npus")
    if rows is None:
        raise TopologyError(root.place, "there are no links", "write links:")
    if not isinstance(rows.data, list):
        raise TopologyError(rows.place, "not a list", "write one mapping per link")
    npus = None if count is None else npu_count(_cell(count), count.place)
    links = Links()
    for row in rows.data:
        place = str(row.mark)
        if not isinstance(row.data, dict):
            remedy = "write {src: 0, dst: 1, bandwidth: 50 GB/s, latency: 500 ns}"
            raise TopologyError(place, "a link is not a mapping", remedy)
        cells = {key: _cell(value) for key, value in row.data.items()}
        direction = cells.pop("directions", "one")
        if direction not in ("one", "both"):
            raise TopologyError(f"{place}.directions", f'"{direction}" is neither one nor both', "write one or both")
        links.add_row(cells, place, both=direction == "both")
    return links.topology(file, Path(file).stem, npus)


def _cell(value: Any) -> object:
    """A scalar as written, with all digits before its unit."""
    return value.plain() if isinstance(value.data, list | dict) else value.raw


def _unique(pairs: list[tuple[str, object]]) -> dict:
    result: dict = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f'the key "{key[:40]}" is written twice')
        result[key] = value
    return result


def _no_constant(text: str) -> None:
    raise ValueError(f"{text} is not a number")


def read_json(text: str, file: str = "") -> Topology:
    """Read a networkx node-link graph (see the module's docstring); `file` is named in errors."""
    try:
        # Decimals keep the digits as written, so that units stay exact.
        data = json.loads(text, parse_float=Decimal, parse_constant=_no_constant, object_pairs_hook=_unique)
    except json.JSONDecodeError as error:
        place = f"{file}:{error.lineno}:{error.colno}"
        raise TopologyError(place, f"not JSON: {error.msg}", "check commas and quotes") from None
    except RecursionError:
        raise TopologyError(file, "nested too deeply", "write a node-link graph") from None
    except ValueError as error:
        raise TopologyError(file, f"not JSON: {error}", "write a node-link graph") from None
    edges = data.get("edges", data.get("links")) if isinstance(data, dict) else None
    nodes = data.get("nodes") if isinstance(data, dict) else None
    if not isinstance(edges, list) or not isinstance(nodes, list):
        raise TopologyError(file, "not a node-link graph", "write what networkx.node_link_data gives")
    graph = data.get("graph")
    value = graph.get("npus") if isinstance(graph, dict) else None
    npus = None if value is None else npu_count(value, f"{file}: graph.npus")
    links = Links()
    numbers, switches, count = _json_vertices(nodes, links, npus, file)
    for index, edge in enumerate(edges):
        place = f"{file}: edges[{index}]"
        if not isinstance(edge, dict):
            raise TopologyError(place, "an edge is not an object", "write source, target and attributes")
        links.add_row(edge, place, both=not data.get("directed", True), ignore=True)
        if len(links.vertices) > len(nodes):
            raise TopologyError(place, "an end of the edge is not among the nodes", "list it under nodes")
    topology = links.numbered(file, Path(file).stem, count, numbers, switches)
    value = graph.get("switches") if isinstance(graph, dict) else None
    return topology if value is None else replace(topology, computing=_computing(value, topology, f"{file}: graph"))


def _computing(value: Any, topology: Topology, place: str) -> Computing | None:
    try:
        return Switches.model_validate(tuples(value), context={"written": True}).of(topology, f"{place}.switches")
    except ValidationError as error:
        mistake = next(mistakes(error))
        raise TopologyError(mistake.path(f"{place}.switches"), mistake.problem, mistake.remedy) from None


def _json_vertices(
    nodes: list, links: Links, npus: int | None, file: str
) -> tuple[dict[int | str, int], list[str], int]:
    """Vertex numbers of all nodes, names of the switches, number of NPUs."""
    hosts: list[int | str] = []
    switches: list[int | str] = []
    names: dict[int | str, str] = {}
    for index, node in enumerate(nodes):
        place = f"{file}: nodes[{index}]"
        if not isinstance(node, dict) or "id" not in node:
            raise TopologyError(place, "a node has no id", 'write {"id": 0}')
        key, kind = links.vertex(node["id"], place), node.get("kind")
        if key in names:
            raise TopologyError(place, f"node {str(node['id'])[:40]} is listed twice", "list it once")
        if kind not in (None, "npu", "switch"):
            raise TopologyError(f"{place}: kind", f'"{str(kind)[:40]}" is neither npu nor switch', "write one")
        by_rule = isinstance(key, int) and (npus is None or key < npus)
        (hosts if (kind == "npu" if kind else by_rule) else switches).append(key)
        name = node.get("name", str(key))
        names[key] = name if isinstance(name, str) and _NAME.fullmatch(name) else str(key)
    if npus is not None and len(hosts) != npus:
        raise TopologyError(f"{file}: graph.npus", f"{npus}, and {len(hosts)} nodes are NPUs", "make them agree")
    if not hosts:
        raise TopologyError(file, "there are no NPUs", "number the NPUs from 0")
    # Numbers 0..n-1 are kept; otherwise NPUs are numbered in the order listed.
    if all(isinstance(k, int) and k < len(hosts) for k in hosts):
        hosts.sort()
        if all(isinstance(k, int) for k in switches):
            switches.sort()
    numbers = {key: i for i, key in enumerate([*hosts, *switches])}
    return numbers, [names[k] for k in switches], len(hosts)
