"""`simulate`: one call for every engine."""

from __future__ import annotations

from astrasim_py.core.errors import SimulationError, UsageError
from astrasim_py.core.records import LEVELS, Records
from astrasim_py.system.plan import Plan, make_plan
from astrasim_py.system.problem import Problem

#: Engines by name; ``auto`` picks one.
ENGINES = ("auto", "simpy")


def simulate(problem: Problem | Plan, *, engine: str = "auto", level: str = "links") -> Records:
    """Run a problem.

    Parameters
    ----------
    problem : Problem or Plan
        A Plan is run as it is; a Problem is planned first.
    engine : str
        One of `ENGINES`.
    level : str
        What to record: ``summary``, ``links``, ``nodes`` or ``messages``.

    Returns
    -------
    Records
        Also when the run is stuck or reaches a limit: see `Records.outcome`.

    Raises
    ------
    TraceError, AlgorithmError, ScenarioError
        The problem cannot be run (found before running).
    SimulationError
        A matched send and receive of unequal bytes, or figures beyond 63 bits (found by running).
    UsageError
        Unknown engine or level.
    """
    if engine not in ENGINES:
        raise UsageError("engine", f'"{engine}" is unknown', f"write one of {', '.join(ENGINES)}")
    if level not in LEVELS:
        raise UsageError("record", f'"{level}" is unknown', f"write one of {', '.join(LEVELS)}")
    plan = problem if isinstance(problem, Plan) else make_plan(problem)
    from astrasim_py.engine.simpy_engine.engine import run

    try:
        return run(plan, level)
    except OverflowError:
        raise SimulationError(
            ", ".join(job.name for job in plan.problem.jobs),
            "its times or its bytes on a link go beyond 2^63 - 1 (of picoseconds: 106 days)",
            "use smaller sizes, fewer repeats or faster links",
        ) from None
