"""Messages that wait for a link that a slower one feeds, under models in which a link serves one message at a time."""

from astrasim_py.core.choices import FOLDED
from astrasim_py.core.records import Records
from astrasim_py.core.units import number_of
from astrasim_py.system.plan import Plan


def held_up(plan: Plan, records: Records) -> list[str]:
    """Where, and how often, a message waited behind one from a slower link: a line, or none."""
    network, waited = plan.problem.network, records.link["held_up"]
    total = int(waited.sum())
    if not total:
        return []
    worst = int(waited.argmax())
    link = plan.problem.topology.link_name(int(records.link["link"][worst]))
    share, most = 100 * total / records.message_hops, f"most on {link} ({int(waited[worst]):,})"
    holds = "as long as the slower one feeds it" if network.model == "cut_through" else "alone"
    also = " and no profile, which fluid does not know" if network.profile is not None else ""
    also += ", and run it without fold" if records.engine.endswith(FOLDED) else ""
    return [
        f"{network.model}: a message waited behind one from a slower link in {total:,} of "
        f"{number_of(records.message_hops, 'hop')} ({share:.2g} %), {most}; that one holds the link {holds}, where "
        f"packets would share it; write network: {{model: fluid}}{also}"
    ]
