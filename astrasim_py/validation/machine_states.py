"""The state of a machine, by a test of its collectives: what a healthy one and a degraded one wait for each member."""

import csv
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from pathlib import Path

#: States of machines, with what they were fitted to.
STATES = Path(__file__).parents[1] / "data" / "validation" / "machine_states.csv"


@dataclass(frozen=True)
class MachineState:
    """Software latencies of collectives in a state of a machine.

    `from_gb_s`: least rate of an all_gather among the GPUs of a node in nccl-tests that shows the state, GB/s.
    `tp_member`: seconds for each member of a tensor parallel group, inside a node and across; see `System.tp_member`.
    `far_latency`: seconds of a step of other collectives between nodes.
    """

    name: str
    from_gb_s: float
    tp_member: tuple[float, float]
    far_latency: float


def state_of(gpu: str, node_all_gather_gb_s: float | None) -> MachineState | None:
    """The state that a test inside a node shows, GB/s; None where there is no test, or no state of the GPU is known."""
    if node_all_gather_gb_s is None:
        return None
    return next((state for state in _states().get(gpu, ()) if node_all_gather_gb_s >= state.from_gb_s), None)


@cache
def _states() -> Mapping[str, tuple[MachineState, ...]]:
    """States by GPU, the fastest first."""
    by_gpu: dict[str, list[MachineState]] = {}
    with STATES.open(newline="") as file:
        for row in csv.DictReader(file):
            near, far, step = (float(row[key]) / 1e6 for key in ("tp_member_us", "tp_member_far_us", "far_latency_us"))
            state = MachineState(row["state"], float(row["from_gb_s"]), (near, far), step)
            by_gpu.setdefault(row["gpu"], []).append(state)
    return {gpu: tuple(sorted(states, key=lambda state: -state.from_gb_s)) for gpu, states in by_gpu.items()}
