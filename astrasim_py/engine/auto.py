"""The engine that ``auto`` takes: the one that costs less CPU time, compiling and loading included."""

import contextlib

from astrasim_py.core.cache import cache_folder
from astrasim_py.core.choices import AUTO, BOTH, COMPILED, FLUID, SIMPY
from astrasim_py.core.errors import AstraError, UsageError
from astrasim_py.core.files import write_file
from astrasim_py.core.jit_notes import ABSENT, KEPT, LOADED, state_of
from astrasim_py.system.compatible import COMPILED as ONLY_COMPILED
from astrasim_py.system.compatible import NO_ROUTES, exclusions
from astrasim_py.system.plan import Plan

#: Message-hops in which the SimPy engine costs as much as the compiled engine before its first event. SimPy takes 50 µs
#: a message-hop; the compiled engine 20 ms where it is in memory, 0.1 s to load, 15 s to compile.
HOPS = {LOADED: 1_000, KEPT: 3_000, ABSENT: 300_000}
_KERNEL = "astrasim_py.engine.compiled.kernel.advance"


def engine_for(plan: Plan, engine: str = AUTO, points: int = 1) -> str:
    """The engine that runs a plan when `engine` is requested: ``simpy``, ``compiled`` or ``both``.

    ``auto`` takes SimPy below the `HOPS` of the kernel's state on this machine, and for plans that only SimPy can run:
    a user's network model, and the analytical model with too many routes for a table. `points`: plans like this one
    that this process will run. Earlier runs that used SimPy because nothing was compiled count, too, so compiling pays
    in the end.

    Raises UsageError: another engine for a plan that only SimPy can run.
    """
    network = plan.problem.network
    routes = plan.problem.topology.npus if network.model == "analytical" and plan.computed_routes else None
    for exclusion in exclusions({"network": network, NO_ROUTES: routes}, (ONLY_COMPILED,)):
        if engine in (COMPILED, BOTH):
            raise UsageError("engine", f'"{engine}" {exclusion.problem}', exclusion.remedy)
        return SIMPY
    if engine != AUTO:
        return engine
    hops = predicted_hops(plan) * points
    if hops < HOPS[LOADED]:
        return SIMPY
    there = state_of(_KERNEL, whole=_whole(plan))
    before = _hops_before() if there == ABSENT else 0
    return COMPILED if hops + before >= HOPS[there] else SIMPY


def is_compiled() -> bool:
    """Whether the kernel is in memory or in the cache, without its optional parts."""
    return state_of(_KERNEL, whole=False) != ABSENT


def take_engine(plan: Plan, engine: str = AUTO, points: int = 1) -> str:
    """`engine_for` a plan before its run; also counts the message-hops that SimPy takes because nothing is compiled."""
    chosen = engine_for(plan, engine, points)
    if engine == AUTO and chosen == SIMPY and predicted_hops(plan) >= HOPS[LOADED]:
        folder = cache_folder()
        if folder is not None and state_of(_KERNEL, whole=_whole(plan)) == ABSENT:
            with contextlib.suppress(AstraError):
                text = str(_hops_before() + predicted_hops(plan))
                write_file(folder / _COUNT, text.encode(), make_folder=True)
    return chosen


#: File in the cache: message-hops that SimPy carried because nothing was compiled.
_COUNT = "simpy_hops"


def _hops_before() -> int:
    folder = cache_folder()
    try:
        return 0 if folder is None else min(int((folder / _COUNT).read_bytes()[:20]), HOPS[ABSENT])
    except (OSError, ValueError):
        return 0


def _whole(plan: Plan) -> bool:
    """Whether a plan needs the optional parts of the kernel."""
    problem = plan.problem
    detours = problem.noise is not None and problem.noise.detours is not None
    optional = problem.network.model == FLUID or problem.network.qps > 1 or problem.nic is not None or detours
    optional = optional or any(job.planner is not None for job in problem.jobs)
    if optional or plan.tiles or any(call.by_blocks for call in plan.calls.values):
        return True
    programs = (p for call in plan.calls.values for p in call.different)
    return problem.semantics.issue_order == "hash_set" and any(p.structure.buckets for p in programs)


def predicted_hops(plan: Plan) -> int:
    """Messages of a complete run times the links of a route, on the average over pairs that exchange messages."""
    pairs, links = len(plan.route_pairs), plan.route_links
    return plan.messages * len(links) // pairs if pairs and links is not None else plan.messages
