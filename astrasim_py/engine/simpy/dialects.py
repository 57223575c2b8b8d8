"""The simulation under any rules: which subclass of `Simulation` follows which, and for which plans it is loaded."""

from collections.abc import Callable
from typing import NamedTuple

from astrasim_py.core.by_need import load
from astrasim_py.core.choices import FLUID
from astrasim_py.engine.simpy.simulation import Simulation
from astrasim_py.system.plan import Plan


class Dialect(NamedTuple):
    """Rules that only some plans need. `simulation`: ``module:name`` of a subclass of `Simulation`."""

    simulation: str
    needed: Callable[[Plan], bool]


#: Where two have a method, the upper one wins, and reaches the lower one by ``super()`` (`following`).
DIALECTS = (
    Dialect("astrasim_py.dialects.nic.simpy:NicSimulation", lambda plan: plan.problem.nic is not None),
    Dialect("astrasim_py.dialects.detours.simpy:InterruptedSimulation", lambda plan: plan.detours is not None),
    Dialect(
        "astrasim_py.dialects.astra_sim.simpy:HashSetSimulation",
        lambda plan: plan.problem.semantics.issue_order == "hash_set",
    ),
    Dialect(
        "astrasim_py.dialects.astra_sim.simpy:RendezvousSimulation",
        lambda plan: plan.problem.semantics.rendezvous_bytes > 0,
    ),
    Dialect(
        "astrasim_py.dialects.astra_sim.simpy:ScheduledSimulation",
        lambda plan: plan.problem.semantics.event_order == "scheduled",
    ),
    Dialect(
        "astrasim_py.dialects.astra_sim.simpy:LowestDimensionSimulation",
        lambda plan: plan.problem.semantics.analytical_route == "lowest_dim",
    ),
    Dialect(
        "astrasim_py.dialects.chunks.simpy:ChunkingSimulation",
        lambda plan: any(job.planner is not None for job in plan.problem.jobs),
    ),
    Dialect("astrasim_py.dialects.tiles.simpy:TiledSimulation", lambda plan: bool(plan.tiles)),
    Dialect("astrasim_py.dialects.switches.simpy:SwitchSimulation", lambda plan: plan.ranks > plan.npu_ranks),
    Dialect("astrasim_py.dialects.queue_pairs.simpy:QueuePairSimulation", lambda plan: plan.problem.network.qps > 1),
    Dialect(
        "astrasim_py.dialects.thread_blocks.simpy:BlockSimulation",
        lambda plan: plan.problem.network.profile is not None and plan.problem.network.profile.programs is not None,
    ),
    Dialect(
        "astrasim_py.dialects.library.simpy:CountingSimulation",
        lambda plan: any(programs.different.counting for programs in plan.programs),
    ),
    Dialect(
        "astrasim_py.dialects.library.simpy:ConnectedSimulation",
        lambda plan: plan.problem.network.msccl is not None or plan.problem.network.profile is not None,
    ),
    Dialect("astrasim_py.dialects.link_events.simpy:EventSimulation", lambda plan: bool(plan.states)),
    Dialect(
        "astrasim_py.dialects.fluid.simpy:FluidSimulation",
        lambda plan: plan.problem.network.model == FLUID and plan.problem.network.factory is None,
    ),
    Dialect(
        "astrasim_py.dialects.own_model.simpy:OwnModelSimulation",
        lambda plan: plan.problem.network.factory is not None,
    ),
)


def rules_of(plan: Plan) -> list[type[Simulation]]:
    """The rules that a run of a plan follows."""
    return [*(load(dialect.simulation) for dialect in DIALECTS if dialect.needed(plan)), Simulation]
