"""What a person should know of a plan before it is run."""

from astrasim_py.core.notes import Notes
from astrasim_py.program.selection import AlgorithmTable
from astrasim_py.system.call_sizes import size_notes
from astrasim_py.system.plan import Plan


def plan_notes(plan: Plan) -> list[str]:
    """What was given and does not fit; one line each."""
    if plan.problem.network.profile is None:
        return size_notes(plan)
    from astrasim_py.dialects.library.lower_costs import beyond_the_rows

    return [*(f"network.profile: {text}" for text in beyond_the_rows(plan)), *size_notes(plan)]


def source_notes(plan: Plan) -> Notes:
    """What the sources of the plan's algorithms found out when its calls asked them."""
    tables = [job.algorithms for job in plan.problem.jobs if isinstance(job.algorithms, AlgorithmTable)]
    notes = Notes()
    for source in (table.notes for table in tables):
        for text in source.warnings:
            notes.warn_once(text)
        notes.hints += [text for text in source.hints if text not in notes.hints]
        notes.synthesized += [facts for facts in source.synthesized if facts not in notes.synthesized]
    return notes
