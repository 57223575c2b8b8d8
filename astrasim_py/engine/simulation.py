"""`simulate`: one call for every engine."""

import gc
from collections.abc import Callable, Sequence

import numpy as np

from astrasim_py.core.choices import AUTO, BOTH, COMPILED, ENGINES, FOLDED, LEVELS, SIMPY
from astrasim_py.core.errors import AstraError, FoldError, InternalError, SimulationError, UsageError
from astrasim_py.core.records import Records
from astrasim_py.core.registry import own_failure
from astrasim_py.engine.auto import engine_for, predicted_hops, take_engine
from astrasim_py.engine.simpy.dialects import rules_of
from astrasim_py.engine.simpy.simulation import following
from astrasim_py.program.selection import Way
from astrasim_py.system.lowering import make_plan
from astrasim_py.system.plan import Plan
from astrasim_py.system.problem import Problem
from astrasim_py.system.programs import SEND, RankProgram

__all__ = ["ENGINES", "engine_for", "plan_for", "predicted_hops", "simulate"]

#: Nodes of a part of a folded workload from which on it is run by the compiled engine.
_MANY_NODES = 10_000


def simulate(problem: Problem | Plan, *, engine: str = AUTO, level: str = "links", fold: bool = False) -> Records:
    """Run a problem and say nothing of it; see `astrasim_py.simulate`, whose parameters and errors these are."""
    if engine not in ENGINES:
        raise UsageError("engine", f'"{engine}" is unknown', f"write one of {', '.join(ENGINES)}")
    if level not in LEVELS:
        raise UsageError("record", f'"{level}" is unknown', f"write one of {', '.join(LEVELS)}")
    plan = problem if isinstance(problem, Plan) else plan_for(problem, engine, fold=fold)
    if fold and engine == BOTH and any(job.workload.roles for job in plan.problem.jobs):
        raise FoldError("fold", "a fold of roles does not count all events", "write another engine than both")
    chosen = take_engine(plan, engine) if not fold else BOTH if engine == BOTH else FOLDED
    jobs = ", ".join(job.name for job in plan.problem.jobs)

    def run(name: str) -> Records:
        try:
            records = _engine(name)(plan, level)
        except OverflowError:
            from astrasim_py.engine.compare import BEYOND

            raise SimulationError(
                _too_large(plan),
                BEYOND,
                "use smaller sizes, fewer repeats or faster links",
            ) from None
        except (AstraError, InternalError, MemoryError):
            raise
        except Exception as error:
            from astrasim_py.dialects.own_model.simpy import OwnModel

            model = plan.problem.network.factory
            if not isinstance(model, OwnModel) or own_failure(error):
                raise
            raise model.failure(error) from error
        most = plan.problem.limits.max_events
        if fold and name != FOLDED and records.events + records.message_hops > most:
            problem = f"the full run for comparison takes more than {most} events (--max-events)"
            raise FoldError("fold", problem, "raise that limit, or write another engine than both")
        return records

    if chosen == BOTH:
        from astrasim_py.engine.compare import run_both

        return run_both(run, jobs, (engine_for(plan), FOLDED) if fold else (SIMPY, COMPILED))
    return run(chosen)


def plan_for(problem: Problem, engine: str = AUTO, *, fold: bool = False, bounds: bool = True) -> Plan:
    """The plan of a problem for `simulate`: for a folded run only what it needs; `bounds`: with bounds of calls."""
    return make_plan(problem, folded=fold and engine != BOTH, choose=_fastest, bounds=bounds)


def _fastest(problem: Problem, ways: Sequence[Way], size: int, npus: tuple[int, ...]) -> Way:
    from astrasim_py.engine.choose import fastest

    return fastest(simulate, problem, ways, size, npus)


def _too_large(plan: Plan) -> str:
    """Names of the jobs whose own times or bytes, added up, go beyond 63 bits; of all where none do alone."""
    jobs, topology = plan.problem.jobs, plan.problem.topology
    if len(jobs) == 1:
        return jobs[0].workload.name or jobs[0].name
    slowest, latency = float(min(topology.bandwidths, default=1)), float(topology.latency_ps.max(initial=0))
    delays = zip(plan.first_rank, jobs, strict=True)
    totals = np.array(
        [[max(plan.start_delay[first : first + job.ranks], default=0), 0] for first, job in delays], float
    )

    def add(job: int, program: RankProgram, times: int = 1) -> None:
        sent = program.structure.kind == SEND
        nbytes = program.nbytes[sent].sum(dtype=np.float64)
        took = program.duration.sum(dtype=np.float64) + nbytes / slowest * 1e12 + sent.sum() * latency
        totals[job] += times * np.array([took, nbytes])

    for job, program in zip(plan.job_of, plan.workload, strict=True):
        add(job, program)
    for index, call in enumerate(plan.calls):
        for program, copies in zip(call.different, np.bincount(call.programs.which).tolist(), strict=True):
            add(plan.instances[plan.instance_of[index]].job, program, copies)
    names = [job.name for job in jobs]
    return ", ".join([n for n, total in zip(names, totals.max(axis=1), strict=True) if total >= 2**63] or names)


def _engine(name: str) -> Callable[[Plan, str], Records]:
    if name == FOLDED:
        return _run_folded
    if name == SIMPY:
        return _run_simpy
    from astrasim_py.engine.compiled.engine import run

    return run


def _run_folded(plan: Plan, level: str) -> Records:
    from astrasim_py.engine.fold import check_level, run_folded
    from astrasim_py.engine.fold_roles import run_folded_roles

    check_level(level)
    if not any(job.workload.roles for job in plan.problem.jobs):
        return run_folded(plan, level)
    return run_folded_roles(plan, level, _run_part)


def _run_part(problem: Problem, level: str) -> tuple[Plan, Records]:
    """The plan of a part of a folded workload, and its records: few messages, and perhaps many nodes."""
    plan = plan_for(problem)
    engine = engine_for(plan)
    if engine == SIMPY and plan.row_count > _MANY_NODES and problem.network.factory is None:
        engine = COMPILED
    return plan, simulate(plan, engine=engine, level=level)


def _run_simpy(plan: Plan, level: str) -> Records:
    collects = gc.isenabled()
    gc.disable()  # reference counts free the events of a run; the search for cycles would take a quarter of its time
    try:
        return following(*rules_of(plan))(plan, level).run()
    finally:
        if collects:
            gc.enable()
