"""Plain edge lists: a link a line, ``0 1``, ``0,1``, ``0 1 50 GB/s 500 ns`` or ``0 1 {'bandwidth': '50 GB/s'}``.

What follows the two ends is a bandwidth and a latency, each with its unit or in that of the default, or a dictionary as
networkx writes it. Text from ``#`` on is a comment. Every line is a link in both directions, unless every line has its
reverse in the list, or ``directions`` says what it is.
"""

import ast
import re
from pathlib import Path
from typing import Any, NamedTuple

from astrasim_py.core.errors import TopologyError
from astrasim_py.topology.edge_list import NO_DEFAULTS, Links, content_lines
from astrasim_py.topology.link_defaults import LinkDefaults
from astrasim_py.topology.model import Topology

_TOKEN = re.compile(r"[,\s]+")
_QUANTITY = re.compile(r"[+-]?[\d.]\S*(\s+[A-Za-zµμ][A-Za-z/µμ]*)?")
#: Longest dictionary behind the ends, characters.
_MOST = 4096


class PlainLink(NamedTuple):
    ends: tuple[str, str]
    cells: dict[str, Any]
    place: str
    line: int
    ignore: bool  # whether it may have attributes that do not count


def read_plain(text: str, file: str = "", defaults: LinkDefaults = NO_DEFAULTS) -> Topology:
    """Read a plain list. Raises TopologyError: with ``file:line``."""
    lines, npus = content_lines(text, file)
    links = Links(defaults)
    rows = [row for number, line in enumerate(lines, 1) if (row := _row(line, file, number)) is not None]
    both = links.directions() == "both" if defaults.both is not None else _both(rows, file)
    for row in rows:
        links.add_row({"src": row.ends[0], "dst": row.ends[1], **row.cells}, row.place, both=both, ignore=row.ignore)
    return links.topology(file, Path(file).stem, npus)


def _both(rows: list[PlainLink], file: str) -> bool:
    """Whether lines stand for links in both directions."""
    lines = {row.ends: row.line for row in rows}
    reverses = [row.ends[::-1] in lines and row.ends[0] != row.ends[1] for row in rows]
    if not any(reverses):
        return True
    if all(reverses):
        return False
    row, alone = rows[reverses.index(True)], rows[reverses.index(False)]
    problem = (
        f"{' '.join(row.ends)} has its reverse in line {lines[row.ends[::-1]]}, "
        f"and {' '.join(alone.ends)} of line {alone.line} has none"
    )
    raise TopologyError(row.place, problem, "write directions: both or directions: one beside file:")


def _row(line: str, file: str, number: int) -> PlainLink | None:
    place = f"{file}:{number}"
    line = line.partition("#")[0].strip() if "{" not in line else line.strip()
    if not line:
        return None
    first, *rest = _TOKEN.split(line, maxsplit=1)
    second, *more = _TOKEN.split(rest[0], maxsplit=1) if rest else ("",)
    if not second:
        raise TopologyError(place, f'"{first[:40]}" is one end of a link', "write two, e.g. 0 1")
    ends, text = (first.strip('"'), second.strip('"')), more[0].strip() if more else ""
    if text.startswith("{"):
        return PlainLink(ends, _dictionary(text, place), place, number, True)
    parts = [part.strip() for part in text.split(",")] if "," in text else [m[0] for m in _QUANTITY.finditer(text)]
    left = "" if "," in text else _QUANTITY.sub("", text).strip()
    if left or len(parts) > 2:
        problem = f'"{(left or text)[:40]}" is not a bandwidth and a latency'
        raise TopologyError(place, problem, "write e.g. 0 1 50 GB/s 500 ns")
    return PlainLink(ends, dict(zip(("bandwidth", "latency"), parts, strict=False)), place, number, False)


def _dictionary(text: str, place: str) -> dict[str, Any]:
    remedy = "write e.g. 0 1 {'bandwidth': '50 GB/s'}"
    try:
        cells = ast.literal_eval(text) if len(text) <= _MOST else None
    except (ValueError, SyntaxError, RecursionError, MemoryError):
        cells = None
    if not isinstance(cells, dict) or not all(isinstance(key, str) for key in cells):
        raise TopologyError(place, f"{text[:40]} is not a dictionary of attributes", remedy)
    return {key: value for key, value in cells.items() if key not in ("src", "dst")}
