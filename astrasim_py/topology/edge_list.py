"""Topologies written link by link: CSV, plain lines, YAML, node-link JSON, GraphML, or a list in a scenario.

**CSV.** A header ``src,dst,bandwidth,latency`` (in any order) with units in the cells, or columns that carry
their unit, such as ``bw_GiBps,lat_us``; one directed link a line. Lines that begin with ``#`` are comments,
and ``# npus N`` gives the number of NPUs (as does a column ``npus``). Vertices 0..N-1 are NPUs; larger
numbers and names are switches. Without N every number is an NPU and every name a switch.

**Plain lines.** See `plain_list`: ``0 1``, ``0,1`` or ``0 1 50 GB/s 500 ns``, without a header.

**YAML.** ``npus: N`` (optional) and ``links:``, a list of mappings with the same keys; ``directions: both``
makes two links of one entry.

**JSON and GraphML.** See `node_link` and `graphml`.

Values that a link does not name, and units of numbers without one, are those of `LinkDefaults`.

Switches are numbered after the NPUs: first those with numbers, ascending, then those with names, in order of
first appearance. Parallel links are legal, self-loops are not.
"""

import csv
import io
import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from decimal import Decimal
from fractions import Fraction
from functools import lru_cache
from pathlib import Path
from typing import Any

import numpy as np

from astrasim_py.core.errors import ScenarioError, TopologyError, UnitError
from astrasim_py.core.fields import NPU_CAP
from astrasim_py.core.units import INT64_MAX, parse_bandwidth, parse_time
from astrasim_py.topology.link_defaults import DefaultLatency, DefaultRate, LinkDefaults
from astrasim_py.topology.model import LINK_CAP, Topology, check_caps
from astrasim_py.topology.spec import below

#: Largest YAML file accepted, in bytes.
MAX_YAML = 2**21
NO_DEFAULTS = LinkDefaults()
#: Maximum values in a YAML file: nine per link.
_MOST_VALUES = 2**19

_COLUMNS = {
    **dict.fromkeys(("src", "source", "from"), "src"),
    **dict.fromkeys(("dst", "dest", "destination", "target", "to"), "dst"),
    **dict.fromkeys(("bandwidth", "bw"), "bandwidth"),
    **dict.fromkeys(("latency", "lat"), "latency"),
}
#: Columns that name an end of a link.
END_COLUMNS = tuple(name for name, meaning in _COLUMNS.items() if meaning in ("src", "dst"))
_NEEDED = {
    "src": "src",
    "dst": "dst",
    "bandwidth": "bandwidth (cells such as 50 GB/s) or bw_GBps, or write bandwidth: 50 GB/s beside file:",
    "latency": "latency (cells such as 500 ns) or lat_ns, or write latency: 500 ns beside file:",
}
_PARSERS: Mapping[str, Callable[[str], Any]] = {"bandwidth": parse_bandwidth, "latency": parse_time}
_WRITE = "write src,dst,bandwidth,latency"
_NUMBER = re.compile(r"[0-9]{1,12}")
#: A name of a switch.
NAME = re.compile(r"[A-Za-z_][A-Za-z0-9._:\[\]/-]{0,63}")
_PLAIN = re.compile(r"[+-]?(\d+\.?\d*|\.\d+)([eE][+-]?\d+)?")
_RATIO = re.compile(r"([0-9]{1,60})/([0-9]{1,60})")
_NPUS = re.compile(r"#\s*npus\s*[:= ]\s*(\S.*)")

#: Meaning (``src``, ``dst``, ``bandwidth``, ``latency``) → name as written, and its unit ("" if it is in the cell).
Columns = Mapping[str, tuple[str, str]]


def read_columns(
    place: str, names: Iterable[str], *, ignore: bool = False, defaults: LinkDefaults = NO_DEFAULTS
) -> Columns:
    """Meanings of columns or keys; unknown names are refused, or ignored. A column may lack if there is a default."""
    columns: dict[str, tuple[str, str]] = {}
    for name in names:
        meaning = _meaning(place, name)
        if meaning is None:
            if ignore:
                continue
            raise TopologyError(f"{place}: {name}", "an unknown column", f"{_WRITE} (or npus)")
        quantity, unit = meaning
        if quantity in columns:
            raise TopologyError(f"{place}: {name}", f"a second column for {quantity}", "keep one of them")
        columns[quantity] = name, unit
    for needed, example in _NEEDED.items():
        if needed not in columns and getattr(defaults, needed, None) is None:
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

    def __init__(self, defaults: LinkDefaults = NO_DEFAULTS) -> None:
        self.defaults = defaults
        #: Keys of the defaults that some link has used.
        self.used: set[str] = set()
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
        if not _NUMBER.fullmatch(text) and not NAME.fullmatch(text):
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

    def or_default(self, bandwidth: Fraction | None, latency: int | None) -> tuple[Fraction, int]:
        """Bandwidth and latency of a link, those of the defaults where it has none."""
        if bandwidth is None:
            assert self.defaults.bandwidth is not None
            bandwidth = self.defaults.bandwidth.value
            self.used.add("bandwidth")
        if latency is None:
            assert self.defaults.latency is not None
            latency = self.defaults.latency.value
            self.used.add("latency")
        return bandwidth, latency

    def directions(self, usual: str = "one") -> str:
        """Directions of an entry that does not say it: those of the defaults, or as usual."""
        self.used.add("directions")
        return usual if self.defaults.both is None else "both" if self.defaults.both else "one"

    def add_row(self, row: Mapping[str, Any], place: str, *, both: bool = False, ignore: bool = False) -> None:
        names = tuple(row)
        if names not in self._headers:
            self._headers[names] = read_columns(place, names, ignore=ignore, defaults=self.defaults)
        columns = self._headers[names]
        values: dict[str, Any] = {}
        for quantity in _PARSERS:
            default: DefaultRate | DefaultLatency | None = getattr(self.defaults, quantity)
            name, unit = columns.get(quantity, ("", ""))
            cell, cell_place = row.get(name, ""), f"{place}: {name}"
            if default is not None and (cell is None or cell == ""):
                values[quantity] = default.value
                self.used.add(quantity)
                continue
            if default is not None and not unit and _PLAIN.fullmatch(str(cell).strip()):
                self.used.add(quantity)
            if isinstance(cell, bool) or not isinstance(cell, str | int | float | Decimal):
                raise TopologyError(cell_place, f"{cell!r} is not a {quantity}", "write a number with its unit")
            try:
                values[quantity] = _quantity(quantity, unit, str(cell).strip(), default and default.unit)
            except UnitError as error:
                raise TopologyError(cell_place, error.problem, error.remedy) from None
        self.add(row[columns["src"][0]], row[columns["dst"][0]], **values, place=place, both=both)

    def topology(self, place: str, name: str, npus: int | None) -> Topology:
        """The topology of the links so far, numbered as the module's docstring says. `npus`: as the file says it."""
        if npus is None:
            npus = 1 + max((k for k in self.vertices if isinstance(k, int)), default=-1)
            if npus == 0:
                raise TopologyError(place, "there are no NPUs", "number the NPUs from 0")
            if self.defaults.npus is not None and self.defaults.npus <= npus:
                npus = self.defaults.npus
        self.check_npus(npus)
        switches: list[int | str] = [*sorted(k for k in self.vertices if isinstance(k, int) and k >= npus)]
        switches += [k for k in self.vertices if isinstance(k, str)]
        numbers = {key: npus + i for i, key in enumerate(switches)}
        return self.numbered(place, name, npus, numbers, [str(key) for key in switches])

    def check_npus(self, npus: int) -> None:
        """Raises TopologyError: the key ``npus`` beside the file says another number."""
        given = self.defaults.npus
        if given not in (None, npus):
            place = below(self.defaults.place or "", "npus")
            raise TopologyError(place, f"{given}, and the file has {npus}", "delete it")

    def check_used(self) -> None:
        """Raises TopologyError: a key beside the links that none of them uses."""
        defaults = self.defaults
        given = {"bandwidth": defaults.bandwidth, "latency": defaults.latency, "directions": defaults.both}
        for key, value in given.items():
            if defaults.place is not None and value is not None and key not in self.used:
                what = {"directions": "directions"}.get(key, f"{key} with its unit")
                raise TopologyError(below(defaults.place, key), f"every link has its own {what}", "delete it")

    def numbered(
        self, place: str, name: str, npus: int, numbers: Mapping[int | str, int], switches: Sequence[str]
    ) -> Topology:
        """The topology of the links so far; a vertex without an entry in `numbers` is an NPU of that number."""
        self.check_used()
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
def _quantity(quantity: str, unit: str, text: str, usual: Fraction | None = None) -> Fraction | int:
    """Bandwidth in bytes per second or latency in ps, exact; raises UnitError. `usual`: unit of a number without one,
    in bytes per second or ps.
    """
    if not unit and usual is not None and _PLAIN.fullmatch(text):
        return _in_unit(quantity, text, usual)
    if not unit:
        try:
            return _PARSERS[quantity](text)
        except UnitError as error:
            if not _PLAIN.fullmatch(text) or "unit" not in error.problem:
                raise
            example = {"bandwidth": "50 GB/s", "latency": "500 ns"}[quantity]
            remedy = f"write e.g. {example}, or {quantity}: {example} beside file:, whose unit it then has"
            raise UnitError("", error.problem, remedy) from None
    ratio = _RATIO.fullmatch(text)
    if ratio and quantity == "bandwidth" and int(ratio[2]):
        value = Fraction(int(ratio[1]), int(ratio[2])) * parse_bandwidth(f"1 {unit}")
        if 0 < value <= INT64_MAX:
            return value
    if not _PLAIN.fullmatch(text):
        raise UnitError("", f'"{text[:40]}" is not a number', f"the column is in {unit}: write e.g. 50")
    return _PARSERS[quantity](f"{text} {unit}")


def _in_unit(quantity: str, text: str, unit: Fraction) -> Fraction | int:
    """A plain number in a unit of bytes per second or ps, exact; latencies are rounded up. Raises UnitError."""
    value = Fraction(text) * unit
    if quantity == "bandwidth" and 0 < value <= INT64_MAX:
        return value
    if quantity == "latency" and 0 <= value <= INT64_MAX:
        return math.ceil(value)
    raise UnitError("", f"{text} is out of range", f"write a {quantity} above 0")


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


def content_lines(text: str, file: str) -> tuple[list[str], int | None]:
    """Lines with comments empty, which keeps their count, and the number of NPUs that a comment says."""
    npus: int | None = None
    lines = []
    for number, line in enumerate(io.StringIO(text, newline=None), start=1):
        comment = line.lstrip().startswith("#")
        if comment and (count := _NPUS.match(line.strip())):
            npus = _agree(npus, count[1], f"{file}:{number}: npus")
        lines.append("\n" if comment else line)
    return lines, npus


def has_header(lines: Iterable[str]) -> bool:
    """Whether the first line names columns: it has no number among its ends. Nothing at all counts as a header."""
    for line in lines:
        if line.strip():
            ends = re.split(r"[,\s]+", line.strip())[:2]
            return not any(_NUMBER.fullmatch(end.strip('"')) for end in ends)
    return True


def read_csv(text: str, file: str = "", defaults: LinkDefaults = NO_DEFAULTS) -> Topology:
    """Read an edge list in CSV form (see the module's docstring); `file` is named in errors."""
    lines, npus = content_lines(text, file)
    links, header, where = Links(defaults), None, f"{file}:1"
    reader = csv.reader(lines, strict=True)
    try:
        for row in reader:
            if not row or not any(cell.strip() for cell in row):
                continue
            where = f"{file}:{reader.line_num}"
            if header is None:
                header = [cell.strip() for cell in row]
                if not any(_COLUMNS.get(name.partition("_")[0]) for cell in header for name in cell.split()):
                    problem = f'"{",".join(header)[:40]}" names neither columns nor an NPU by its number'
                    raise TopologyError(where, problem, f"number the NPUs from 0, as in 0 leaf0; or {_WRITE}")
                if len(header) == 1 and len(header[0].split()) > 1:
                    raise TopologyError(where, "columns are separated by blanks", "write commas, or drop this line")
                read_columns(where, [name for name in header if name != "npus"], defaults=defaults)
                continue
            if len(row) != len(header):
                raise TopologyError(where, f"{len(row)} cells under {len(header)} columns", f"write {','.join(header)}")
            cells = dict(zip(header, row, strict=True))
            count = cells.pop("npus", "").strip()
            if count:
                npus = _agree(npus, count, f"{where}: npus")
            links.add_row(cells, where, both=links.directions() == "both")
    except csv.Error as error:
        raise TopologyError(f"{file}:{reader.line_num}", f"not CSV: {error}", "check the quotes") from None
    if header is None:
        raise TopologyError(where, "the file is empty", "begin with src,dst,bandwidth,latency, or a link such as 0 1")
    return links.topology(file, Path(file).stem, npus)


def _agree(before: int | None, value: str, place: str) -> int:
    count = npu_count(value, place)
    if before is not None and before != count:
        raise TopologyError(place, f"{count} NPUs here, {before} above", "say it once")
    return count


def read_yaml(text: str, file: str = "", defaults: LinkDefaults = NO_DEFAULTS) -> Topology:
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
    links = Links(defaults)
    for row in rows.data:
        place = str(row.mark)
        if not isinstance(row.data, dict):
            remedy = "write {src: 0, dst: 1, bandwidth: 50 GB/s, latency: 500 ns}"
            raise TopologyError(place, "a link is not a mapping", remedy)
        cells = {key: _cell(value) for key, value in row.data.items()}
        direction = cells.pop("directions") if "directions" in cells else links.directions()
        if direction not in ("one", "both"):
            raise TopologyError(f"{place}.directions", f'"{direction}" is neither one nor both', "write one or both")
        links.add_row(cells, place, both=direction == "both")
    return links.topology(file, Path(file).stem, npus)


def _cell(value: Any) -> object:
    """A scalar as written, with all digits before its unit."""
    return value.plain() if isinstance(value.data, list | dict) else value.raw
