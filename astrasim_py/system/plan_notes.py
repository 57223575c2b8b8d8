"""What a person should know of a plan before it is run."""

from astrasim_py.dialects.library.lower_costs import beyond_the_rows
from astrasim_py.system.call_sizes import size_notes
from astrasim_py.system.plan import Plan


def plan_notes(plan: Plan) -> list[str]:
    """What was given and does not fit; one line each."""
    return [*(f"network.profile: {text}" for text in beyond_the_rows(plan)), *size_notes(plan)]
