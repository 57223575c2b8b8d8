"""Say what a topology has, and draw it.

TOPOLOGY is a file, a preset, or a shape as in torus:4x4 or leaf_spine,leaves=4,… (list presets, list shapes).
"""

import argparse
import re
from pathlib import Path
from typing import TYPE_CHECKING

from astrasim_py.cli.options import format_option
from astrasim_py.cli.output import printed
from astrasim_py.core.errors import UsageError
from astrasim_py.results.values import ns_number

if TYPE_CHECKING:
    from astrasim_py.topology.model import Topology

_SUFFIXES = (".png", ".svg", ".pdf")
#: Larger drawings show nothing.
_MOST_DRAWN = 2**14


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("topology", metavar="TOPOLOGY", help='file, preset, or e.g. torus:4x4 or "ring:8,bandwidth=…"')
    parser.add_argument(
        "--draw", nargs="?", const="", metavar="FILE", help=f"draw it ({', '.join(_SUFFIXES)}); NAME.png by default"
    )
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    from astrasim_py.cli.topologies import drawable_topology

    if args.draw and Path(args.draw).suffix not in _SUFFIXES:
        raise UsageError("--draw", f'"{args.draw}" is no picture', f"write a name that ends in {', '.join(_SUFFIXES)}")
    topology, rates = drawable_topology(args.topology, "topology")
    facts = {key: value for key, value in topology._facts()[1].items() if value or key in ("switches", "links")}
    facts = facts if rates else {key: facts[key] for key in facts if key not in ("bandwidth", "latency")}
    if args.draw is not None and topology.links > _MOST_DRAWN:
        problem = f"{topology.links} links are too many to draw"
        raise UsageError("--draw", problem, f"draw a smaller one, of at most {_MOST_DRAWN} links")
    files = []
    if args.draw is not None:
        file = args.draw or f"{re.sub(r'[^A-Za-z0-9._-]+', '_', topology.name) or 'topology'}.png"
        files.append(str(_draw(topology, file)))
    if printed(args.format, {**_row(topology, rates), **facts, "files": files}):
        return 0
    print(topology.name)
    for name, value in facts.items():
        print(f"{name:<11} {value}")
    for file in files:
        print(file)
    return 0


def _row(topology: "Topology", rates: bool) -> dict[str, object]:
    """Facts for programs; null: rates of links that were not given."""
    row: dict[str, object] = {
        "name": topology.name,
        "npus": topology.npus,
        "switches": topology.vertices - topology.npus,
        "links": topology.links,
        "failed_npus": len(topology.failed),
        "events": len(topology.events),
    }
    bandwidths = [float(rate) / 1e9 for rate in topology.bandwidths] if rates else []
    latencies = topology.latency_ps.tolist() if rates else []
    for key, choose in (("least", min), ("largest", max)):
        row[f"{key}_bandwidth_GBps"] = choose(bandwidths, default=None)
        row[f"{key}_latency_ns"] = ns_number(choose(latencies, default=None))
    return row


def _draw(topology, file: str) -> Path:
    from matplotlib.figure import Figure

    from astrasim_py.core.files import write_file
    from astrasim_py.report import figure_style as style

    with style.our_style():
        figure = Figure(figsize=(5, 5), layout="constrained")
        topology.draw(ax=figure.add_subplot())
        return write_file(file, style.render(figure, Path(file).suffix[1:], {}), make_folder=True)
