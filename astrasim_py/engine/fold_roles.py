"""Folding of workloads with roles: copies of a few ranks that do the same are simulated once.

Ranks that share a trace form a *class*. A *copy* is a set of ranks that is closed under point-to-point messages and
under the groups that are kept. Copies are equal, and the first one is simulated on its own NPUs. Collectives of the
other, *folded* roles become computation: their time when all groups of the role run them at once, simulated once for
each kind, size and placement.

That is exact if no two messages of different parts share a link; `astrasim_py.engine.fold_traffic` checks this.
"""

from dataclasses import replace

from astrasim_py.core.choices import FOLDED
from astrasim_py.core.compiling import cpu_s
from astrasim_py.core.records import Fold, Records
from astrasim_py.engine.fold_copy import Copy
from astrasim_py.engine.fold_cover import covered
from astrasim_py.engine.fold_prices import Classes, Prices, Run
from astrasim_py.system.compatible import ROLES
from astrasim_py.system.plan import Plan
from astrasim_py.system.symmetry import refuse_rules

#: Most nodes of a copy for which roles that share links are kept instead of folded.
MOST_NODES = 2**20


def run_folded_roles(plan: Plan, level: str, run: Run, most: int = MOST_NODES) -> Records:
    """Simulate one copy of a plan with roles, and return the Records of all ranks.

    Parameters
    ----------
    plan : Plan
        Of one job, made for a folded run.
    level : str
        ``summary`` or ``links``.
    run : callable
        Plans and simulates a problem at a level.
    most : int
        Roles with messages that share links with others are kept if a copy then has at most this many nodes.

    Returns
    -------
    Records
        `Records.fold` tells whether they are exact, or else the possible error of the makespan. Collectives are those
        of the copy, events those that were simulated.

    Raises
    ------
    FoldError
        Ranks of a class that differ in groups, peers or placement; rules that depend on the order of ranks.
    """
    refuse_rules(plan, ROLES)
    begin = cpu_s()
    classes = Classes(plan)
    prices = Prices(classes, run)
    kept = classes.across()
    copy = Copy(classes, prices, kept)
    copy.simulate(run)
    while (more := kept | copy.unsafe()) != kept:
        ring = covered(classes, prices, kept, more, run)
        if ring is not None and (classes.nodes(more) > most or not ring.deviation(run)[1]):
            copy = ring
            break
        if classes.nodes(more) > most:
            break
        if len(classes.copies(more)) == 1:
            _, records = run(plan.problem, level)
            told = Fold(ranks=plan.ranks, copies=1, exact=True, deviation=0, text="exact; all ranks were simulated")
            return replace(records, engine=records.engine + FOLDED, cpu_s=cpu_s() - begin, fold=told)
        kept, copy = more, Copy(classes, prices, more)
        copy.simulate(run)
    return copy.records(level, run, cpu_s() - begin)
