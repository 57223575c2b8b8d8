"""States of machines: what the software of collectives waits on a sound one and on a degraded one."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import numpy as np

from astrasim_py.core.errors import ScenarioError

#: States by hardware preset, with what they were fitted to; ``*`` is of machines that are not listed.
STATES = Path(__file__).parents[1] / "data" / "training" / "machine_states.csv"
#: What stands for all machines that are not listed.
ANY = "*"
#: Slowdowns of a fabric up to this count as none.
_AS_SOUND = 1.25


@dataclass(frozen=True)
class MachineState:
    """Latencies of communication software in a state of a machine, in seconds; those of links come on top.

    `from_gb_s`: least rate of an all_gather among the GPUs of a node in nccl-tests that shows the state, GB/s; 0 where
    nothing is below. `tp_member`: for each member of a tensor parallel group, inside a node and across. They pass
    beside the computation, in the host's launches. `ring`: of a step of other collectives on rings, inside a node and
    between nodes. `tree`: of an all-reduce between nodes for each doubling of their number; None: it is on rings.
    `message`: of a message, inside a node and between nodes. `gather`: seconds per GB of an all_gather over n nodes in
    nccl-tests: constant part, and part for each node. `sound_gather`: the same of a sound machine.
    """

    name: str
    from_gb_s: float
    tp_member: tuple[float, float]
    ring: tuple[float, float]
    tree: float | None
    message: tuple[float, float]
    gather: tuple[float, float]
    sound_gather: tuple[float, float]
    source: str = ""

    def slowdown(self, nodes: float | np.ndarray, measured_gb_s: float | None = None) -> float | np.ndarray:
        """How many times as long gradients take between nodes as on a sound machine; 1 where less than 1.25.

        `measured_gb_s`: rate of an all_gather over these nodes in nccl-tests; by default that of the state.
        """
        const, per_node = self.sound_gather
        sound = const + per_node * np.asarray(nodes)
        here = self.gather[0] + self.gather[1] * np.asarray(nodes) if measured_gb_s is None else 1 / measured_gb_s
        ratio = here / np.where(sound > 0, sound, 1.0)
        return np.where((ratio < _AS_SOUND) | (np.asarray(nodes) < 2) | (sound <= 0), 1.0, ratio)


def states_of(machine: str) -> tuple[MachineState, ...]:
    """States of a hardware preset, the best first."""
    return _states().get(machine) or _states()[ANY]


def all_states() -> tuple[tuple[str, MachineState], ...]:
    """Every state with its machine."""
    return tuple((machine, state) for machine, states in _states().items() for state in states)


def state_names() -> tuple[str, ...]:
    """Names of all states, of whatever machine."""
    return tuple(dict.fromkeys(state.name for _, state in all_states()))


def machine_state(machine: str, name: str) -> MachineState:
    """A state of a hardware preset by its name. Raises ScenarioError: no such state of the machine is known."""
    states = states_of(machine)
    for state in states:
        if state.name == name:
            return state
    known = sorted(key for key, others in _states().items() if any(state.name == name for state in others))
    problem = f'no state "{name}" of {"this machine" if machine == ANY else machine} is known'
    instead = f"; {name} is known of {', '.join(known)}" if known else ""
    raise ScenarioError("state", problem, f"write {' or '.join(state.name for state in states)}{instead}")


def state_of(machine: str, node_all_gather_gb_s: float) -> MachineState:
    """The state of a hardware preset that the rate of an all_gather inside a node shows, GB/s."""
    states = states_of(machine)
    return next((state for state in states if node_all_gather_gb_s >= state.from_gb_s), states[-1])


@cache
def _states() -> Mapping[str, tuple[MachineState, ...]]:
    rows_of: dict[str, list[Mapping[str, str]]] = {}
    with STATES.open(newline="") as file:
        for row in csv.DictReader(file):
            rows_of.setdefault(row["machine"], []).append(row)
    return {
        machine: tuple(_state(row, rows[0]) for row in sorted(rows, key=lambda row: -float(row["from_gb_s"])))
        for machine, rows in rows_of.items()
    }


def _state(row: Mapping[str, str], sound: Mapping[str, str]) -> MachineState:
    def seconds(key: str, unit: float = 1e6) -> float:
        return float(row[key]) / unit

    def gather(of: Mapping[str, str]) -> tuple[float, float]:
        return float(of["gather_ms"] or 0) / 1e3, float(of["gather_node_ms"] or 0) / 1e3

    return MachineState(
        name=row["state"],
        from_gb_s=float(row["from_gb_s"]),
        tp_member=(seconds("tp_member_us"), seconds("tp_member_far_us")),
        ring=(seconds("ring_us"), seconds("ring_far_us")),
        tree=seconds("tree_us") if row["tree_us"] else None,
        message=(seconds("message_us"), seconds("message_far_us")),
        gather=gather(row),
        sound_gather=gather(sound),
        source=row["source"],
    )
