"""What could be better in a run: a model that serves messages one by one, or lets them share what links do not have."""

from collections.abc import Iterator

from astrasim_py.core.records import Records
from astrasim_py.system.held_up import held_up
from astrasim_py.system.plan import Plan


def hints(plan: Plan, records: Records) -> Iterator[str]:
    """Lines on a run, each with what to write instead."""
    yield from held_up(plan, records)
    if not plan.problem.network.contention:
        from astrasim_py.system.shared_links import beyond_links

        yield from beyond_links(plan, records)
