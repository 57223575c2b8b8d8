"""Run ASTRA-sim's inputs, and say what it would have said."""

from __future__ import annotations

from collections.abc import MutableMapping
from dataclasses import dataclass

from astrasim_py.astra_sim.input_set import Inputs
from astrasim_py.astra_sim.make_problem import make_problem, route_warnings
from astrasim_py.core.records import Outcome, Records
from astrasim_py.core.units import PS_PER_NS
from astrasim_py.engine.simulation import simulate
from astrasim_py.system.lowering import make_plan
from astrasim_py.system.machine_models import Limits
from astrasim_py.system.plan import Plan


@dataclass(frozen=True, slots=True, kw_only=True)
class AstraResult:
    """The result of a run in ASTRA-sim's terms.

    `finish_ns`, `exposed_ns`: by rank; None where the rank did not finish.
    """

    finish_ns: tuple[int | None, ...]
    exposed_ns: tuple[int | None, ...]
    warnings: tuple[str, ...]  # of the files, and one for each quirk met
    outcome: Outcome  # how it ended
    plan: Plan
    records: Records

    def lines(self) -> list[str]:
        """ASTRA-sim's lines, in order of finishing."""
        finished = sorted((t, rank) for rank, t in enumerate(self.finish_ns) if t is not None)
        return [
            f"sys[{rank}] finished, {t} cycles, exposed communication {self.exposed_ns[rank]} cycles."
            for t, rank in finished
        ]


def run_inputs(
    inputs: Inputs,
    *,
    corrected: bool = False,
    engine: str = "auto",
    level: str = "summary",
    cache: MutableMapping | None = None,
    limits: Limits | None = None,
) -> AstraResult:
    """Run ASTRA-sim's inputs.

    `inputs`: from `read_inputs`. `corrected`: the physics instead of ASTRA-sim's numbers; times are cut to whole ns in
    the result. `engine`, `level`: as of `simulate`. `cache`: files read before, shared between calls; only while they
    do not change. Raises ScenarioError, TraceError, AlgorithmError, SimulationError: what ASTRA-sim would hang or crash
    on.
    """
    warnings = list(inputs.warnings)
    plan = make_plan(make_problem(inputs, warnings, corrected=corrected, cache=cache, limits=limits))
    if not corrected:
        warnings += route_warnings(plan, inputs)
    records = simulate(plan, engine=engine, level=level)
    left = set(records.outcome.unfinished_ranks)
    finish_ns, exposed_ns = (
        tuple(None if rank in left else ps // PS_PER_NS for rank, ps in enumerate(column.tolist()))
        for column in (records.finish, records.exposed_comm)
    )
    return AstraResult(
        finish_ns=finish_ns,
        exposed_ns=exposed_ns,
        warnings=tuple(dict.fromkeys(warnings)),
        outcome=records.outcome,
        plan=plan,
        records=records,
    )
