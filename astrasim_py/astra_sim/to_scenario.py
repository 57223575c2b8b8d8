"""ASTRA-sim's command line as a scenario that gives the same times."""

import json
import os
import re
from pathlib import Path

from astrasim_py.astra_sim.configs import read_system
from astrasim_py.astra_sim.input_set import EMPTY, Arguments
from astrasim_py.core.choices import BY_DIMENSION

#: Field of `Arguments` → key of the scenario, and the default, which is not written.
_KEYS = {
    "workload": ("workload", None),
    "system": ("system", None),
    "network": ("network", None),
    "memory": ("remote_memory", None),
    "groups": ("comm_group", EMPTY),
    "queues_per_dim": ("num_queues_per_dim", 1),
    "injection_scale": ("injection_scale", "1"),
    "rendezvous": ("rendezvous_protocol", False),
    "backend": ("backend", ""),
}
_FILES = ("workload", "system", "network", "memory", "groups")
_PLAIN = re.compile(r"[A-Za-z0-9_./-]*[A-Za-z_/][A-Za-z0-9_./-]*")


def scenario_text(arguments: Arguments, target: str | os.PathLike[str], *, corrected: bool) -> str:
    """The scenario, with names of files relative to the folder of `target`. Raises ScenarioError: a system
    configuration that cannot be read.
    """
    folder = Path(target).parent
    lines = []
    for name, (key, default) in _KEYS.items():
        value = getattr(arguments, name)
        if value is None or (value == default and name not in ("workload", "backend")):
            continue
        if name in _FILES:
            value = os.path.relpath(value, folder)
        lines.append(f"    {key}: {_scalar(value)}")
    system = read_system(arguments.system, [])
    injects = system.per_node_custom_implementation or any(map(system.injected, BY_DIMENSION))
    if injects and os.path.realpath(folder) != os.path.realpath(arguments.folder):
        lines.append(f"    folder: {_scalar(os.path.relpath(arguments.folder, folder))}  # of injected algorithms")
    if corrected:
        lines.append("    corrected: true")
    text = "\n".join(lines)
    return f"""\
# The numbers of ASTRA-sim. To sweep, write another value as $name, and its values below: files, options,
# or keys of files, as in the comments.
name: {_scalar(re.sub("[^A-Za-z0-9._-]", "_", Path(target).stem))}
workload:
  astra_sim:
{text}
# sweep:
#   workload.astra_sim.backend: [congestion_unaware, congestion_aware]
#   workload.astra_sim.system.preferred-dataset-splits: [1, 4, 16]
"""


def _scalar(value: object) -> str:
    """A value of YAML in one line."""
    text = str(value).lower() if isinstance(value, bool) else str(value)
    plain = not isinstance(value, str) or (_PLAIN.fullmatch(text) and text.lower() not in ("true", "false", "null"))
    return text if plain or re.fullmatch(r"[0-9]+(\.[0-9]+)?", text) else json.dumps(text, ensure_ascii=False)
