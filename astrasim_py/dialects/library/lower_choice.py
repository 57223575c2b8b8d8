"""Candidates of a library for a call, by collective, size and shape of the group; one of them is chosen.

NCCL's: rings over every rail of the nodes, pairs of trees over them, reductions in the switches, and messages
between all pairs. Source: NCCL, src/graph (rings.cc, trees.cc, tuning.cc), 2.27.
"""

from collections.abc import Iterator
from dataclasses import replace

from astrasim_py.builders.keys import BuilderKeys
from astrasim_py.builders.registry import IN_NETWORK, build, default_algorithm, rooted
from astrasim_py.builders.switch_trees import reached, switches_above
from astrasim_py.core.choices import FASTEST, SWITCH
from astrasim_py.core.errors import ScenarioError
from astrasim_py.dialects.library.lower_costs import chosen_by_table, switch_load
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import Way
from astrasim_py.system.problem import Problem
from astrasim_py.topology.grid import nodes_of
from astrasim_py.topology.model import Topology
from astrasim_py.topology.profile import LibraryProfile
from astrasim_py.verification.bounds import may_reduce

#: Bytes of a piece of a pipeline, and most messages of one.
_PIECE, _MESSAGES = 2**18, 2**18
#: Most GPUs of a host. A larger group on one switch is on several, which are nodes to NCCL: it has trees over them.
_HOST = 8
#: Least bytes of a channel where links limit it: 64 for each of 512 threads (NCCL, src/graph/tuning.cc).
_CHANNEL_BYTES = 2**15


def ways_of_nccl(problem: Problem, collective: str, npus: tuple[int, ...], size: int, root: int) -> list[Way]:
    """NCCL's candidates for a call of `size` bytes on NPUs in their order, trees first.

    `problem`: the machine: topology, network and semantics. Without a profile, protocols make no difference.
    """
    network, nodes = problem.network, nodes_of(problem.topology, npus)
    profile: LibraryProfile | None = network.profile
    table = chosen_by_table(problem, collective, size, len(npus))
    protocols = ("",) if profile is None else tuple(profile.protocols)
    if profile is not None and (network.protocol != FASTEST or table.protocol is not None):
        protocols = (table.protocol or network.protocol or FASTEST,)
    ways = []
    rails = max(map(len, nodes))
    for protocol in protocols:
        rings = trees = max(1, min(rails, size // _CHANNEL_BYTES))
        if profile is not None and profile.protocols[protocol].channel_rate is not None:
            # NCCL's thresholds: bytes per thread for a tree, bytes per thread and rank for a ring.
            rings, trees = profile.channels_for(size, len(npus)), profile.channels_for(size, 1)
        ways += [
            Way(replace(algorithm, protocol=protocol, verdict=True), protocol)
            for kind, algorithm in _algorithms(collective, nodes, size, root, rings, trees)
            if table.algorithm in (None, kind)
        ]
    switch = None
    if profile is not None and network.protocol == FASTEST and network.switch_reduction is not False:
        switch = profile.switch
    able = switch is not None and collective in switch.collectives and len(npus) >= switch.ranks
    able = able and table.protocol is None and table.algorithm in (None, SWITCH)
    if able and problem.topology.switch_of(npus) is not None:
        ways.append(Way(switch_load(collective, len(npus)), SWITCH))
    if profile is None and may_reduce(problem.topology) and network.switch_reduction is not False:
        ways += _in_switch(problem.topology, collective, npus, size)
    if not ways:
        wrong = f"its table chooses {table.algorithm} for {collective}, which nccl does not have for {len(npus)} ranks"
        raise ScenarioError("network.profile", wrong, "narrow that row, e.g. by ranks")
    return ways


def _in_switch(topology: Topology, collective: str, npus: tuple[int, ...], size: int) -> Iterator[Way]:
    """The reduction in the one switch of some NPUs, if it computes. The choice is kept for like groups, so that the
    switch is found when the call is planned."""
    if collective in IN_NETWORK["nvls"][0] and reached(topology, npus, "nvls"):
        options = switches_above(topology, npus, "nvls", collective, {"switches": None})
        options["chunks"] = _pieces(size // len(npus), 6 * len(npus) ** 2)
        yield Way(build("nvls", collective, len(npus), **options).with_verdict(True), "")


def _algorithms(
    collective: str, nodes: list[list[int]], size: int, root: int, rings: int, trees: int
) -> Iterator[tuple[str, Algorithm]]:
    """Candidates, and what tables call them; those that a library has no choice about have no name."""
    n = sum(map(len, nodes))
    through: BuilderKeys = {"nodes": nodes, "channels": rings}
    if collective == "all_reduce" and (len(nodes) > 1 or n > _HOST):
        chunks = _pieces(size // (2 * trees), 4 * n * trees)
        yield "tree", build("double_binary_tree", collective, n, chunks=chunks, nodes=nodes, channels=trees)
    if collective in ("all_reduce", "all_gather", "reduce_scatter"):
        over: BuilderKeys = {"overlap": True, **through} if len(nodes) > 1 else {}
        yield "ring", build("ring", collective, n, **over)
    elif collective in ("broadcast", "reduce"):
        pieces = _pieces(size // rings, n * rings)
        chain: BuilderKeys = {"chunks": pieces, **rooted(collective, root), **through}
        yield "ring", build("ring", collective, n, **chain)
    elif collective in ("gather", "scatter"):
        yield "", build("linear", collective, n, **rooted(collective, root))
    else:
        yield "", build(default_algorithm(collective), collective, n)


def _pieces(size: int, messages: int) -> int:
    """Pieces in which a call of `size` bytes is pipelined, with `messages` messages per piece."""
    return max(1, min(size // _PIECE, _MESSAGES // messages))
