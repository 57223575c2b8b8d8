"""List what can be named: models, machines (hardware presets), algorithms (builders)."""

import argparse
import json
from collections.abc import Iterator

from astrasim_py.cli.options import format_option

KINDS = ("models", "machines", "algorithms")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("kind", choices=KINDS, metavar="KIND", help=", ".join(KINDS))
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    """Print the list."""
    from astrasim_py.report.tables import text_table

    rows = list({"models": _models, "machines": _machines, "algorithms": _algorithms}[args.kind]())
    if args.format == "json":
        print(json.dumps(rows, indent=2, ensure_ascii=False))
        return 0
    numeric = [isinstance(rows[0][key], int | float) for key in rows[0]]
    cells = [tuple(_text(value) for value in row.values()) for row in rows]
    print(text_table(tuple(key.replace("_", " ") for key in rows[0]), cells, tuple(numeric)))
    return 0


def _text(value: object) -> str:
    if isinstance(value, int) and value >= 10**8:
        return f"{value / 1e9:.5g} G"
    return ", ".join(value) if isinstance(value, list | tuple) else str(value)


def _models() -> Iterator[dict]:
    from astrasim_py.training.models import RecommendationModel, model, model_names, recommendation_names

    for name in model_names():
        shape = model(name)
        yield {
            "model": name,
            "layers": shape.layers,
            "hidden": shape.hidden,
            "heads": shape.heads,
            "experts": shape.experts,
            "parameters": shape.params_total,
            "active": shape.params_active,
        }
    for name in recommendation_names():
        total = RecommendationModel.model_validate(name).params_total
        yield {"model": name, "layers": "", "hidden": "", "heads": "", "experts": "", "parameters": total, "active": ""}


def _machines() -> Iterator[dict]:
    from astrasim_py.topology.hardware import preset, preset_names

    for name in preset_names("topology"):
        found = preset(name)
        npu = found.compute
        yield {
            "machine": name,
            "npu": npu.npu if npu else "",
            "memory": npu.memory if npu else 0,
            "formats": list(npu.peak) if npu else [],
            "title": found.title,
        }


def _algorithms() -> Iterator[dict]:
    from astrasim_py.builders.registry import BUILDERS
    from astrasim_py.collectives.collective import COLLECTIVES
    from astrasim_py.core.choices import LIBRARIES

    for name, (served, _) in BUILDERS.items():
        yield {"algorithm": name, "collectives": list(served)}
    for name in LIBRARIES:
        yield {"algorithm": name, "collectives": list(COLLECTIVES)}
