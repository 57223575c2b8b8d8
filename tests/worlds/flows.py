"""Messages that wait for nothing else, and an oracle of the network model ``fluid`` in exact fractions."""

from __future__ import annotations

import random
from fractions import Fraction
from math import ceil

from worlds import small_problems

from astrasim_py.chakra.schema import NodeType
from astrasim_py.engine.simulation import simulate
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.system.semantics import Semantics
from astrasim_py.topology.link_states import link_states

FREE = Semantics.native(cpu_slots=None, compute_slots=None)


def flows(topology, messages, *, engine: str = "both", level: str = "messages", **rules):
    """Records of messages (source, destination, bytes, start in ps) that wait for nothing else."""
    nodes: list[list[dict]] = [[] for _ in range(topology.npus)]
    for tag, (src, dst, nbytes, start) in enumerate(messages):
        ends = {"comm_src": src, "comm_dst": dst, "comm_size": nbytes, "comm_tag": tag}
        if start:
            nodes[src].append({"type": NodeType.COMP, "duration_ps": start})
        deps = {len(nodes[src]) - 1} if start else set()
        nodes[src].append({"type": NodeType.COMM_SEND, **ends, "deps": deps})
        nodes[dst].append({"type": NodeType.COMM_RECV, **ends})
    job = Job(
        workload=small_problems.workload(nodes),
        placement=tuple(range(topology.npus)),
        algorithms=small_problems.Table("ring"),
    )
    rules = {"network": NetworkModel(model="fluid"), "semantics": FREE} | rules
    return simulate(Problem(topology=topology, jobs=(job,), **rules), engine=engine, level=level)


def delivered(*given, **rules) -> list[int]:
    """When (ps) messages arrive, by their number."""
    found = flows(*given, **rules).message
    return [time for _, time in sorted(zip(found["tag"].tolist(), found["delivered"].tolist(), strict=True))]


def random_messages(rng: random.Random, npus: int, number: int) -> list[tuple[int, int, int, int]]:
    """Messages of random sizes that start at random times, several of them at once."""
    pairs = [rng.sample(range(npus), 2) for _ in range(number)]
    return [
        (a, b, rng.choice((1, 7, rng.randint(1, 10**6))), rng.choice((0, 5, rng.randint(0, 10**7)))) for a, b in pairs
    ]


def max_min(caps: dict, crossed: dict, capacity: dict) -> dict:
    """Max-min fair rates by flow, exact: water rises until a flow is at its cap or on a full link."""
    rates: dict = {}
    while len(rates) < len(caps):
        growing = {link: [f for f in caps if f not in rates and link in crossed[f]] for link in capacity}
        rest = {link: c - sum(rates[f] for f in rates if link in crossed[f]) for link, c in capacity.items()}
        shares = {link: rest[link] / len(those) for link, those in growing.items() if those}
        level = min([*shares.values(), *(caps[f] for f in caps if f not in rates)])
        full = {f for link, share in shares.items() if share == level for f in growing[link]}
        rates |= dict.fromkeys(full | {f for f in caps if f not in rates and caps[f] == level}, level)
    return rates


def oracle(topology, messages) -> list[int]:
    """When (ps, rounded up) the last bytes of messages leave, -1 if never.

    Rates are in fractions, from scratch whenever anything happens. No message may end as an event happens.
    """
    (_, state), *events = link_states(topology)
    todo = sorted(range(len(messages)), key=lambda m: messages[m][3])
    left: dict[int, Fraction] = {}
    ends, now = dict.fromkeys(todo, -1), 0
    #: By pair: its messages, its route (empty: it has none), and when it looks for another one.
    turn: dict[tuple, list[int]] = {}
    route: dict[tuple, list[int]] = {}
    resumes: dict[tuple, int] = {}
    while todo or left:
        if events and events[0][0] == now:
            _, state = events.pop(0)
            for pair in list(route):
                if not turn[pair] or not (route[pair] or pair in resumes):
                    del route[pair]
                elif set(route[pair]) & set(state.lost):
                    route[pair], resumes[pair] = [], now + topology.reroute_ps
        while todo and messages[todo[0]][3] <= now:
            begun = todo.pop(0)
            turn.setdefault(messages[begun][:2], []).append(begun)
            left[begun] = Fraction(messages[begun][2])
        for pair in turn:
            if resumes.get(pair) == now or (turn[pair] and pair not in route):
                resumes.pop(pair, None)
                route[pair] = state.routes([pair[0]], [pair[1]])[1].tolist()
        busy = {pair: queue[0] for pair, queue in turn.items() if queue and route[pair]}
        capacity = {link: state.rates[link] / 10**12 for pair in busy for link in route[pair]}
        rates = max_min({p: min(capacity[link] for link in route[p]) for p in busy}, route, capacity)
        times = [now + ceil(left[m] / rates[pair]) for pair, m in busy.items()] + [*resumes.values()]
        times += [messages[m][3] for m in todo[:1]] + [at for at, _ in events[:1]]
        if not times:
            break
        for pair, m in busy.items():
            left[m] -= rates[pair] * (min(times) - now)
            if left[m] <= 0:
                ends[m] = min(times)
                del left[m]
                turn[pair].pop(0)
        now = min(times)
    return [ends[m] for m in range(len(messages))]
