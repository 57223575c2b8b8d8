"""What a training's software and the state of its machine cost: by their names, or by what nccl-tests measured."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from astrasim_py.core.errors import ScenarioError, UsageError
from astrasim_py.core.fields import FileText
from astrasim_py.core.units import format_size
from astrasim_py.topology.model import Topology
from astrasim_py.topology.shares import with_shares
from astrasim_py.training.machine_states import ANY, MachineState, machine_state, state_of, states_of
from astrasim_py.training.software import DEFAULT, IDEAL, Software, software
from astrasim_py.training.state_keys import SoftwareKey, StateKey, named_software
from astrasim_py.training.system import system


@dataclass(frozen=True, kw_only=True)
class TrainingCosts:
    """Software and state of a machine.

    `state`: None where the software is ideal. `gather_gb_s`: of an all_gather over all nodes in nccl-tests, where it
    was measured. `source`: whence the state is known. `doubts`: a line for each input that changes nothing or may be
    wrong.
    """

    software: Software
    state: MachineState | None = None
    gather_gb_s: float | None = None
    source: str = ""
    doubts: tuple[str, ...] = ()

    def keys(self) -> dict[str, Any]:
        """Keys of results: null where the software is ideal and has no state."""
        state = self.state.name if self.state else None
        return {"software": self.software.name, "state": state, "state_source": self.source or None}


#: Links at nominal rates, and no host.
IDEAL_COSTS = TrainingCosts(software=software(IDEAL))


def achieved(specs: Sequence[Any], topology: Topology, place: str) -> Topology:
    """The topology as the trainings of jobs use it: its links at the shares that their software reaches.

    Raises ScenarioError, at `place`: jobs on the same links have different shares.
    """
    shares: dict[tuple[float, float], str] = {}
    for spec in specs:
        workload = spec.workload
        named = named_software(IDEAL if workload.times == "roofline" else workload.software or DEFAULT)
        shares.setdefault((named.constants.nvlink, float(named.constants.nic)), named.name)
    if len(shares) > 1:
        problem = f"software {' and '.join(shares.values())} reach different shares of the links that they share"
        raise ScenarioError(place, problem, "write the same software for all jobs")
    return with_shares(topology, *next(iter(shares)))


def training_costs(
    software_key: SoftwareKey | None,
    state: StateKey | None,
    machine: str | None,
    ranks: int,
    path_of: Callable[[FileText], Path],
) -> TrainingCosts:
    """The costs that keys name. `machine`: the preset of its NPUs; `path_of`: the path of a file as it is written.

    Raises ScenarioError, at ``software`` or ``state``: there is no such software, no such state of this machine is
    known, or its files do not tell it.
    """
    named = named_software(software_key or DEFAULT)
    if named.ideal:
        doubts = () if state is None else (f"state changes nothing for software: {IDEAL}; drop it",)
        return TrainingCosts(software=named, doubts=doubts)
    if state is None:
        return TrainingCosts(software=named, state=states_of(machine or ANY)[0], source="default")
    if isinstance(state, str):
        return TrainingCosts(software=named, state=machine_state(machine or ANY, state), source="as written")
    return _measured(named, state.nccl_tests, machine, ranks, path_of)


def _measured(
    named: Software,
    files: tuple[FileText, ...],
    machine: str | None,
    ranks: int,
    path_of: Callable[[FileText], Path],
) -> TrainingCosts:
    """The costs of a machine whose state nccl-tests tell."""
    from astrasim_py.measured.node_test import CALL, read_node_test

    if machine is None or len(states_of(machine)) < 2:
        problem = f"of {machine or 'this machine'} no state but sound is known, whatever nccl-tests measured"
        raise ScenarioError("state", problem, "drop it")
    gpus = system(machine).node
    nodes = -(-ranks // gpus)
    paths = {str(path_of(file)): str(file) for file in files}
    try:
        test = read_node_test([*paths], gpus, nodes)
    except UsageError as error:
        place = error.place
        for path, name in paths.items():
            place = place.replace(path, name)
        remedy = error.remedy if CALL[:15] in error.remedy else f"run {CALL.format(gpus=gpus)} on a node"
        raise ScenarioError("state", f"{place}: {error.problem}", remedy) from None
    if test.preset not in (None, machine):
        problem = f"{', '.join(files)} is of {test.platform}, and the machine is {machine}"
        raise ScenarioError("state", problem, "name a test of this machine")
    rate = f"all_gather of {format_size(test.bytes)} in a node {test.node_gb_s:.4g} GB/s"
    doubts: tuple[str, ...] = ()
    if test.fabric_gb_s is not None:
        rate += f", over {test.nodes} nodes {test.fabric_gb_s:.4g} GB/s"
    elif test.others:
        text = f"all_gather was measured over {test.others} nodes, and the machine has {nodes}"
        doubts = (f"state: {text}; the slowdown of the fabric is that of the state",)
    return TrainingCosts(
        software=named,
        state=state_of(machine, test.node_gb_s),
        gather_gb_s=test.fabric_gb_s,
        source=f"{', '.join(files)}: {rate}",
        doubts=doubts,
    )
