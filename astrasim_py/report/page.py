"""One self-contained HTML page that plays runs: its data, and the page around it.

The page's own files are in ``astrasim_py/page``. Here its modules become one script, and the data of each run one
gzip'd JSON document in base64, so that the page needs nothing from outside and works from a folder.
"""

import base64
import gzip
import html
import json
import re
from collections.abc import Mapping, Sequence
from pathlib import Path

import numpy as np

from astrasim_py.core.records import Records, Table, called_instances
from astrasim_py.core.units import format_size
from astrasim_py.report import figure_style
from astrasim_py.report.critical_path import CriticalPath
from astrasim_py.report.gantt_rows import phase_of
from astrasim_py.report.intervals import coverage
from astrasim_py.report.record_plots import places
from astrasim_py.topology.drawing import FAILED

_PAGE = Path(__file__).resolve().parents[1] / "page"
#: Modules in an order in which each uses earlier ones only.
_MODULES = ("view", "data", "network", "gantt", "chunks", "details", "main")
#: More hops than this are not drawn one by one: links show their use over time.
MOST_HOPS = 400_000
#: Cells of the table of use over time: links × bins.
_CELLS = 1_000_000
#: Bars of the Gantt chart; of more, those too short to be seen are drawn together, then ranks are left out.
_MOST_BARS = 60_000
#: Parts of the run that can be told apart in the chart.
_BINS = 2000
#: Computations that no phase of training is known of, beside those with one.
OTHER = "other compute"
_MESSAGE = ("instance", "src", "dst", "bytes", "posted", "delivered")


def page_data(
    title: str,
    records: Records,
    vertex: Table,
    edge: Table,
    npu_of: Sequence[int],
    chunks: Mapping[str, np.ndarray] | None = None,
    longer: Mapping[int, int] | None = None,
    broken: Sequence[tuple[int, int]] = (),
    ranks: Sequence[int] | None = None,
) -> dict:
    """What the page needs of one run, as plain values. Times are ps.

    `records`: of level ``messages``. `vertex`, `edge`: tables of the topology. `npu_of`: rank → NPU. `chunks`:
    ``first``, ``count`` and ``of`` (chunks of the algorithm) by message; -1 where unknown. `longer`: see
    `CriticalPath`. `broken`: ends of links that failed before the run. `ranks`: that have a row in the Gantt chart,
    ascending; all by default, as far as there is room.
    """
    x, y, switch = places(vertex, edge)
    hop, message = records.hop, records.message
    order = np.argsort(hop["start"], kind="stable")
    order = order[hop["end"][order] >= 0]
    hops = order if len(order) <= MOST_HOPS else order[:0]
    sent = np.unique(hop["message"][hops])
    renumbered = np.zeros(message.height, dtype=np.int64)
    renumbered[sent] = np.arange(len(sent))
    latency = dict(zip(edge["link"].tolist(), edge["latency"].tolist(), strict=True))
    path = CriticalPath(records, latency, longer or {}).walk()
    number = {link: row for row, link in enumerate(edge["link"].tolist())}
    row_of = np.array([number[link] for link in hop["link"].tolist()], dtype=np.int64)
    return {
        "title": title,
        "makespan": records.makespan,
        "engine": records.engine,
        "status": records.outcome.status,
        "cause": records.outcome.cause,
        "npu_of": list(npu_of),
        "broken": [list(ends) for ends in dict.fromkeys((min(ends), max(ends)) for ends in broken)],
        "vertices": {
            "name": vertex_names(vertex),
            "switch": switch.astype(int).tolist(),
            "failed": (vertex["kind"] == "failed").astype(int).tolist(),
            "x": np.round(x, 4).tolist(),
            "y": np.round(y, 4).tolist(),
        },
        "links": {name: edge[name].tolist() for name in ("src", "dst", "bandwidth", "latency")}
        | {"name": [str(name) for name in edge["name"].tolist()]},
        "hops": {
            "message": renumbered[hop["message"][hops]].tolist(),
            "link": row_of[hops].tolist(),
            **{name: hop[name][hops].tolist() for name in ("requested", "start", "end")},
        },
        "aggregated": len(hops) < len(order),
        "messages": {name: message[name][sent].tolist() for name in _MESSAGE}
        | {name: values[sent].tolist() for name, values in (chunks or {}).items()},
        "use": _use(hop, row_of, edge.height, records.makespan),
        "bars": _bars(records, np.arange(len(npu_of)) if ranks is None else np.array(ranks)),
        "path": [
            [s.start, s.end, s.category, s.rank, number.get(s.link, -1), s.message] for s in path if s.end > s.start
        ],
        "collectives": [
            {
                "name": f"{c['type']} {format_size(c['size'])}" + (f" ({c['algorithm']})" if c["algorithm"] else ""),
                **{name: c[name] for name in ("instance", "type", "start", "end", "ranks")},
            }
            for c in records.collective.rows()
        ],
    }  # fmt: skip


def vertex_names(vertex: Table) -> list[str]:
    """Names of vertices; tables hold plain ones as bytes."""
    return [name.decode() if isinstance(name, bytes) else str(name) for name in vertex["name"].tolist()]


def _use(hop: Table, row: np.ndarray, links: int, makespan: int) -> dict:
    """Of every link and bin of time: the busy share in percent, and the most messages that waited."""
    bins = int(np.clip(_CELLS // max(links, 1), 20, 400))
    width = max(makespan, 1) / bins
    busy, queue = np.zeros((links, bins)), np.zeros((links, bins), dtype=np.int64)

    def spread(begin: np.ndarray, end: np.ndarray, rows: np.ndarray) -> np.ndarray:
        return coverage(rows, begin, end, links, bins, makespan) / width

    finished = hop["end"] >= 0
    if finished.any():
        busy = np.minimum(spread(hop["start"][finished], hop["end"][finished], row[finished]), 1)
        waited = finished & (hop["start"] > hop["requested"])
        if waited.any():
            queue = np.ceil(spread(hop["requested"][waited], hop["start"][waited], row[waited]) - 1e-9).astype(np.int64)
    links_used = np.flatnonzero(busy.any(axis=1) | queue.any(axis=1))
    return {
        "bins": bins,
        "link": links_used.tolist(),
        "busy": np.round(100 * busy[links_used]).astype(np.int64).ravel().tolist(),
        "queue": queue[links_used].ravel().tolist(),
    }


def _bars(records: Records, ranks: np.ndarray) -> dict:
    """Nodes of the workload for the Gantt chart; the kind of one that calls a collective is the collective's type, that
    of a computation its phase of training, if its name says one.

    `ranks`: that may have a row, ascending.
    """
    node = records.node
    codes, kinds = node.coded("kind")
    kinds = (*kinds, *(() if "compute" in kinds else ("compute",)))
    types = sorted(set(records.collective["type"].tolist()))
    called = called_instances(node)
    type_of = dict(zip(records.collective["instance"].tolist(), records.collective["type"].tolist(), strict=True))
    calls = np.flatnonzero(called >= 0)
    codes = codes.astype(np.int64)
    codes[calls] = [len(kinds) + types.index(type_of[instance]) for instance in called[calls].tolist()]
    names, texts = node.coded("name")
    drawn = (node["end"] >= 0) & (node["end"] > node["start"]) & (node["instance"] < 0)
    rows = np.flatnonzero(drawn & np.isin(node["rank"], ranks))
    shown_names = [text.decode() if isinstance(text, bytes) else str(text) for text in texts]
    all_kinds = [*(str(kind) for kind in (*kinds, *types)), *figure_style.PHASE_COLOURS, OTHER]
    computes = codes == all_kinds.index("compute")
    phases = {number: phase_of(shown_names[number]) for number in np.unique(names[computes]).tolist()}
    rest = OTHER if any(phases.values()) else "compute"
    phase = {number: all_kinds.index(text or rest) for number, text in phases.items()}
    codes[computes] = [phase[number] for number in names[computes].tolist()]
    bars = {"rank": np.searchsorted(ranks, node["rank"][rows]), "kind": codes[rows], "name": names[rows]}
    bars |= {"start": node["start"][rows], "end": node["end"][rows]}
    columns, shown, note = _fitting(bars, len(ranks), len(texts), max(records.makespan, 1))
    return {
        "kinds": all_kinds,
        "names": [*shown_names, "several short ones"],
        "ranks": ranks[shown].tolist(),
        "note": note,
        **{name: column.tolist() for name, column in columns.items()},
        "rank": ranks[columns["rank"]].tolist(),
    }


def _fitting(
    bars: Mapping[str, np.ndarray], ranks: int, several: int, makespan: int
) -> tuple[Mapping[str, np.ndarray], np.ndarray, str]:
    """The bars that are drawn, the ranks that have a row, and what to say of the others.

    Up to `_MOST_BARS` nothing is left out. Of more, bars of one rank and kind that begin in one of `_BINS` parts of the
    run and are shorter than it become one, called `several`; if that is not enough, whole ranks are left out, evenly.
    """
    shown, before, notes = np.arange(ranks), len(bars["rank"]), []
    if before <= _MOST_BARS:
        return bars, shown, ""
    bars = _together(bars, several, makespan / _BINS)
    count = len(bars["rank"])
    if count < before:
        notes.append(f"bars shorter than 1/{_BINS} of the run are drawn together ({before:,} as {count:,})")
    if count > _MOST_BARS:
        bars_of = np.bincount(bars["rank"], minlength=ranks)
        rows = max(ranks * _MOST_BARS // count, 1)
        while rows > 1 and bars_of[_evenly(rows, ranks)].sum() > _MOST_BARS:
            rows -= 1
        shown = _evenly(rows, ranks)
        visible = np.isin(bars["rank"], shown)
        bars = {name: column[visible] for name, column in bars.items()}
        left_out = count - int(visible.sum())
        notes.insert(0, f"{left_out:,} bars left out: {rows} of {ranks} ranks have a row, evenly spaced")
    some = max(ranks * _MOST_BARS // before - 1, 0)
    return bars, shown, f"{'; '.join(notes)}; view NAME --ranks 0-{some} shows these in full"


def _evenly(count: int, ranks: int) -> np.ndarray:
    return np.arange(count) * ranks // count


def _together(bars: Mapping[str, np.ndarray], several: int, width: float) -> dict[str, np.ndarray]:
    """Short bars of a rank and kind as one for each part of the run in which they begin; ordered by rank and start."""
    start, end = bars["start"], bars["end"]
    short = end - start < width
    # Longer bars stay alone: each has a group of its own.
    key = np.where(short, start // width, -1 - np.arange(len(start)))
    order = np.lexsort((start, key, bars["kind"], bars["rank"]))
    columns = np.stack([bars["rank"], bars["kind"], key])[:, order]
    first = np.flatnonzero(np.append(True, (np.diff(columns, axis=1) != 0).any(axis=0)))
    several_bars = np.diff(np.append(first, len(order))) > 1
    merged = {name: column[order[first]] for name, column in bars.items()}
    merged["end"] = np.maximum.reduceat(end[order], first)
    merged["name"] = np.where(several_bars, several, merged["name"])
    again = np.lexsort((merged["start"], merged["rank"]))
    return {name: column[again] for name, column in merged.items()}


def palette() -> dict[str, str | tuple[str, ...]]:
    """What is drawn on the page → its colour, those of the figures; `use`: of links, from little to much use."""
    compute, communication = figure_style.COMPUTE_COLOURS, figure_style.COMMUNICATION_COLOURS
    return {
        "compute": compute[0],
        **figure_style.PHASE_COLOURS,
        OTHER: compute[3],
        "memory": figure_style.MEMORY_COLOUR,
        "software": figure_style.GREY,
        "collective": communication[0],
        "send": figure_style.SEND_COLOUR,
        "recv": figure_style.RECEIVE_COLOUR,
        "metadata": figure_style.GREY,
        **figure_style.TYPE_COLOURS,
        "chunk_part": communication[0],
        "chunk_all": communication[3],
        "broken": FAILED["color"],
        "waiting": figure_style.QUEUE_COLOUR,
        "use": figure_style.USE_COLOURS,
        "use_dark": figure_style.USE_COLOURS_ON_BLACK,
    }


def page_html(title: str, data: Sequence[str], server: Mapping | None = None) -> bytes:
    """The whole page. `data`: of one or two runs, `packed`. `server`: what the server behind it offers."""
    parts = {
        "TITLE": html.escape(title),
        "STYLE": re.sub(r"(?<=[{};:,])\s+", "", (_PAGE / "style.css").read_text("utf-8")),
        "DATA": "\n".join(f'<script type="text/plain" class="run">{text}</script>' for text in data),
        "PALETTE": _attribute(palette()),
        "SERVER": _attribute(server) if server else "",
        "SCRIPT": script(_MODULES if server is None else (*_MODULES, "live")),
    }
    page = re.sub(r"^ +", "", (_PAGE / "page.html").read_text("utf-8"), flags=re.MULTILINE)
    return re.sub(r"@([A-Z]+)@", lambda match: parts[match[1]], page).encode()


def _attribute(value: Mapping) -> str:
    """A value as JSON for an attribute in single quotes, where its many double quotes stand as they are."""
    text = json.dumps(value, separators=(",", ":"))
    return html.escape(text, quote=False).replace("'", "&#x27;")


def packed(run: Mapping, level: int = 6) -> str:
    """A run's data as base64 of gzip'd JSON; the same bytes for the same run. `level`: of compression."""
    text = json.dumps(run, separators=(",", ":"), ensure_ascii=True)
    return base64.b64encode(gzip.compress(text.encode(), level, mtime=0)).decode()


def script(modules: Sequence[str]) -> str:
    """Modules of the page as one script, without comments: a module's names are unique in all of them."""
    parts = []
    for name in modules:
        text = (_PAGE / f"{name}.js").read_text("utf-8")
        text = re.sub(r"^import [^;]*;\n", "", text, flags=re.MULTILINE)
        text = re.sub(r"^ *(?://[^\n]*|/\*\*.*?\*/)\n|^ +|^\n", "", text, flags=re.MULTILINE | re.DOTALL)
        parts.append(re.sub(r"^export ", "", text, flags=re.MULTILINE))
    return "\n".join(parts)
