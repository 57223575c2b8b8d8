"""List what can be named in a scenario or on the command line, each with one line; without KIND, the lists."""

import argparse
import inspect
import re
from collections.abc import Iterator

from astrasim_py.cli.options import format_option, terminal_width
from astrasim_py.cli.output import printed
from astrasim_py.cli.verbs import VERBS
from astrasim_py.core.errors import ScenarioError, UsageError
from astrasim_py.core.fields import did_you_mean


def arguments(parser: argparse.ArgumentParser) -> None:
    known = [*LISTS, *VERBS["list"].actions]
    parser.add_argument("kind", nargs="?", choices=known, metavar="KIND", help=", ".join(LISTS))
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    from astrasim_py.report.tables import Column, fitted_table

    if args.kind is None:
        rows = [{"list": kind, "about": about} for kind, (about, _) in LISTS.items()]
        rows += [{"list": name, "about": verb.text} for name, verb in VERBS["list"].actions.items()]
    elif args.kind in LISTS:
        rows = list(LISTS[args.kind][1]())
    else:
        raise UsageError(
            "list", f'there is no list of "{args.kind}"', did_you_mean(args.kind, [*LISTS, *VERBS["list"].actions])
        )
    if printed(args.format, [row | {old: row[key] for key, old in _FORMER.items() if key in row} for row in rows]):
        return 0
    columns = []
    for number, (key, value) in enumerate(rows[0].items()):
        asked = 0 if number < 2 else number  # the name and the line are for people, the rest where there is room
        heading = _FORMER.get(key, key)
        unit = "B" if key.endswith("_bytes") else ""
        columns.append(Column(heading, [_text(row[key], unit) for row in rows], isinstance(value, int), asked))
    print(fitted_table(columns, terminal_width()))
    return 0


#: Keys of JSON → the former ones, without a unit, which stay beside them for one version.
_FORMER = {"memory_bytes": "memory"}


def _text(value: object, unit: str) -> str:
    if value is None:
        return ""
    if isinstance(value, int) and value >= 10**8:
        return f"{value / 1e9:.5g} G{unit}"
    return ", ".join(value) if isinstance(value, list | tuple) else str(value)


def _first_sentence(made: object) -> str:
    """The first sentence of what a function or class says of itself."""
    text = " ".join((inspect.getdoc(getattr(made, "func", made)) or "").partition("\n\n")[0].split())
    return re.split(r"(?<=[.!?]) ", text)[0].rstrip(".") or "says nothing of itself"


def _added(kind: str) -> Iterator[tuple[str, str]]:
    """Names that other packages provide, each with a line."""
    from astrasim_py.core.registry import names, provided

    for name in names(kind):
        try:
            yield name, _first_sentence(provided(kind, name))
        except ScenarioError as error:
            yield name, error.problem


def _presets() -> Iterator[dict]:
    from astrasim_py.topology.hardware import preset, preset_names

    parts = {kind: preset_names(kind) for kind in ("topology", "link", "compute", "collectives")}
    for name in preset_names():
        found = preset(name)
        npu = found.compute
        yield {
            "preset": name,
            "about": found.title,
            "gives": [kind for kind, names in parts.items() if name in names],
            "npu": npu.npu if npu else None,
            "memory_bytes": npu.memory if npu else None,
            "formats": list(npu.peak) if npu else [],
        }


def _shapes() -> Iterator[dict]:
    from astrasim_py.topology.shapes import SHAPES

    for name, shape in SHAPES.items():
        keys = [key for key, field in shape.model_fields.items() if field.is_required() and key != "shape"]
        yield {"shape": name, "about": _first_sentence(shape), "needs": keys}
    for name, about in _added("shape"):
        yield {"shape": name, "about": about, "needs": []}


def _builders() -> Iterator[dict]:
    from astrasim_py.builders.registry import BUILDERS, factory_of
    from astrasim_py.collectives.collective import COLLECTIVES
    from astrasim_py.core.choices import LIBRARIES

    for name, (collectives, _) in BUILDERS.items():
        yield {"builder": name, "about": _first_sentence(factory_of(name)), "collectives": list(collectives)}
    for name in LIBRARIES:
        about = f"What {name.upper()} would choose, by the profile of a machine"
        yield {"builder": name, "about": about, "collectives": list(COLLECTIVES)}
    for name, about in _added("algorithm"):
        yield {"builder": name, "about": about, "collectives": []}


def _models() -> Iterator[dict]:
    from astrasim_py.training.models import RecommendationModel, model, model_names, recommendation_names

    for name in model_names():
        shape = model(name)
        kind = f"{shape.experts} experts" if shape.experts else "dense"
        yield {
            "model": name,
            "about": f"{shape.layers} layers of width {shape.hidden}, {kind}",
            "parameters": shape.params_total,
            "active": shape.params_active,
            "layers": shape.layers,
            "hidden": shape.hidden,
            "heads": shape.heads,
            "experts": shape.experts,
        }
    for name in recommendation_names():
        total = RecommendationModel.model_validate(name).params_total
        rest = dict.fromkeys(("active", "layers", "hidden", "heads", "experts"))
        yield {"model": name, "about": "recommendation: embedding tables and MLPs", "parameters": total, **rest}


def _software() -> Iterator[dict]:
    from astrasim_py.training.software import software, software_names

    for name in software_names():
        preset = software(name)
        yield {
            "software": name,
            "about": preset.about,
            "fit": preset.fit or None,
            "date": preset.date or None,
            "error": preset.error or None,
        }


def _states() -> Iterator[dict]:
    from astrasim_py.training.machine_states import all_states

    for machine, state in all_states():
        latencies = {
            "tp_member_s": state.tp_member[0],
            "tp_member_far_s": state.tp_member[1],
            "ring_s": state.ring[0],
            "ring_far_s": state.ring[1],
            "tree_s": state.tree,
            "message_s": state.message[0],
            "message_far_s": state.message[1],
        }
        rule = f"an all_gather in a node of at least {state.from_gb_s:g} GB/s" if state.from_gb_s else ""
        yield {
            "state": state.name,
            "about": f"of {machine}: {rule or 'any other'}" if machine != "*" else "of all other machines",
            "machine": machine,
            "from_GBps": state.from_gb_s or None,
            "source": state.source,
            **{key: seconds and float(f"{seconds:.6g}") for key, seconds in latencies.items()},
        }


def _plots() -> Iterator[dict]:
    from astrasim_py.scenario.plot_spec import PLOT_KINDS

    for name, kind in PLOT_KINDS.items():
        yield {"kind": name, "about": kind.about, "keys": sorted(kind.keys)}


def _lessons() -> Iterator[dict]:
    from astrasim_py.cli.new import listed

    for name, title in listed():
        yield {"lesson": name, "about": title}


#: Name of a list, what is in it, and its rows: a name, a line, and more.
LISTS = {
    "presets": ("machines, links and chips, for preset:, link_preset: and --on", _presets),
    "shapes": ("topologies, for shape:", _shapes),
    "builders": ("algorithms of collectives, for builder:", _builders),
    "models": ("models to train, for model:", _models),
    "software": ("presets of training software, for software: and --software", _software),
    "states": ("states of machines in trainings, for state: and --state", _states),
    "plots": ("figures, for plots:", _plots),
    "lessons": ("scenarios to start from; new NAME copies one", _lessons),
}
