"""The stored form of a finished simulation: its row, its summary, and its records as files."""

import re
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from fractions import Fraction

import numpy as np

from astrasim_py.builders.registry import build
from astrasim_py.collectives.collective import busbw_factor
from astrasim_py.core.choices import LEVELS
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.core.exact_json import json_bytes
from astrasim_py.core.records import NO_RATE, Categorical, Records, Table, WaitingNode
from astrasim_py.core.units import format_time
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.report.busiest_links import busiest_links
from astrasim_py.results.collectives import bandwidth_GBps, bounded, collective_rows
from astrasim_py.results.csv_io import csv_chunks
from astrasim_py.results.model import Breakdown, CalledAlgorithm, LinkEventRow, Row, Summary, WaitingRow
from astrasim_py.results.values import ns_number, rounded
from astrasim_py.system.bound import proven_bound
from astrasim_py.system.compatible import CLOSED_FORM, exclusions
from astrasim_py.system.plan import Instance, Plan
from astrasim_py.system.programs import COLLECTIVE, INSTANT
from astrasim_py.topology.layout import positions
from astrasim_py.topology.model import Topology
from astrasim_py.verification.bounds import CLOSED_FORMS, closed_form_ps

#: The first level that keeps a table; others are kept at every level.
FIRST_LEVEL = {"node": "nodes", "message": "messages", "hop": "messages"}
#: Collectives that a summary lists.
_FEW = 64


def only_collective(plan: Plan) -> Instance | None:
    """The collective of a plan that is one collective and nothing else; else None."""
    if len(plan.instances) != 1 or plan.problem.background:
        return None
    structures = dict.fromkeys(p.structure for p in plan.workload.shared)
    kinds = np.unique(np.concatenate([s.kind for s in structures]))
    return plan.instances[0] if set(kinds.tolist()) <= {COLLECTIVE, INSTANT} else None


def closed_form(plan: Plan) -> Fraction | None:
    """Alpha-beta time (ps) of a plan that is one collective over links that are all alike; else None. It is what the
    algorithm takes when no two of its messages share a link, every message crosses one, and no connection holds them
    up.
    """
    instance, topology = only_collective(plan), plan.problem.topology
    if instance is None or instance.algorithm is None or not topology.links:
        return None
    key = (instance.algorithm.name, instance.type)
    alike = len(topology.bandwidths) == 1 and len(np.unique(topology.latency_ps)) == 1
    if any(exclusions(plan.problem.parts, (CLOSED_FORM,))):
        return None
    if key not in CLOSED_FORMS or not alike or topology.renumbered is not None or topology.events:
        return None
    n, alpha, rate = len(instance.members), int(topology.latency_ps[0]), topology.bandwidths[0]
    if instance.algorithm.chunks != build(*key, n, root=instance.algorithm.root).chunks:
        return None  # the formulas are those of the builders without options
    try:
        return closed_form_ps(*key, n, instance.size, alpha, rate, plan.problem.semantics.gamma)
    except AlgorithmError:
        return None  # a formula for powers of two only


def summary_of(plan: Plan, records: Records, row: Row, warnings: Iterable[str] = ()) -> Summary:
    """The summary of a finished simulation. `row`: what is known of the point."""
    problem, topology = plan.problem, plan.problem.topology
    finished, timed = records.outcome.status == "done", not any(job.skeleton for job in problem.jobs)
    row = replace(
        row,
        npus=topology.npus,
        engine=records.engine,
        network_model=problem.network.model,
        messages=records.messages,
        message_hops=records.message_hops,
        status=records.outcome.status,
    )
    of_class = np.array([int(rate) for rate in topology.bandwidths], dtype=np.int64)
    rates = of_class[topology.bandwidth_class[records.link["link"]]] if records.link.height else None
    busiest = busiest_links(records.link, {}, rates, 1)
    if busiest and (busiest[0]["busy"] or busiest[0]["bytes"]):
        rate = rounded(topology.bandwidth(busiest[0]["link"]) / 10**9)
        row = replace(row, busiest_link=topology.link_name(busiest[0]["link"]), busiest_link_GBps=rate)
    instance = only_collective(plan)
    if instance is not None:
        row = replace(row, algorithm=instance.algorithm_name or None, size_bytes=instance.size)
    formula, defects = None, []
    if finished:
        bound, bound_by = proven_bound(plan)
        defects = list(_wrong_bounds(bound, records))
        exposed = ns_number(int(records.exposed_comm.max(initial=0))) if timed else None
        least, share = bounded(bound, records.makespan)
        time = ns_number(records.makespan)
        row = replace(row, time_ns=time, bound_ns=least, efficiency=share, exposed_comm_ns=exposed)
        row = replace(row, bound_by=None if least is None else bound_by)
        if instance is not None and instance.size and records.collective["bound"][0] != NO_RATE:
            duration = int(records.collective["end"][0] - records.collective["start"][0])
            row = replace(row, algbw_GBps=bandwidth_GBps(instance.size, duration))
            factor = busbw_factor(instance.type, len(instance.members))
            if row.algbw_GBps is not None and factor is not None:
                row = replace(row, busbw_GBps=rounded(Fraction(instance.size * 1000, duration) * factor))
        formula = closed_form(plan)
    calls = {(i.type, len(i.members)): busbw_factor(i.type, len(i.members)) for i in plan.instances.values}
    factors = {call: factor for call, factor in calls.items() if factor is not None}
    first = Table({name: column[:_FEW] for name, column in records.collective.items()})
    algorithms = {(i.algorithm, i.algorithm_name): i for i in plan.instances.values if i.algorithm is not None}
    computing = topology.computing
    explanation: Sequence[str] = ()
    if not finished:
        from astrasim_py.engine.stuck import explanation as explained

        explanation = explained(records.outcome)
    return Summary(
        row=row,
        breakdown=breakdown(records) if finished and timed else None,
        closed_form_ns=None if formula is None else ns_number(-(-formula.numerator // formula.denominator)),
        # All collectives are in the records; the first ones are for people.
        collectives=tuple(
            replace(call, bound_by=plan.instances[call.instance].bound_by if call.bound_ns is not None else "")
            for call in collective_rows(row.point, first, factors)
        ),
        busbw_factors=tuple((kind, ranks, str(factor)) for (kind, ranks), factor in factors.items()),
        makespan_ps=records.makespan,
        events=records.events,
        cause=records.outcome.cause,
        explanation=(*explanation, *defects),
        waiting=tuple(_waiting(node, records.outcome.switches) for node in records.outcome.waiting),
        cycle=tuple(records.outcome.cycle),
        unfinished=records.outcome.unfinished,
        warnings=tuple(warnings),
        fold=records.fold,
        algorithms=tuple(_called(call, algorithm) for (algorithm, _), call in algorithms.items()),
        npu_of=tuple(plan.npu_of[: plan.npu_ranks]),
        hop_latency_ps=hop_latency(plan),
        qps=problem.network.qps,
        switches=tuple(plan.switches),
        switch_latency_ps=computing.latency_ps if computing and plan.switches else 0,
        cut_links=topology.cut,
        link_events=_link_events(plan, records),
    )


def _waiting(node: WaitingNode, switches: Mapping[int, str]) -> WaitingRow:
    names = ("rank", "node", "name", "kind", "instance", "src", "dst", "tag", "bytes", "reason", "slots", "job")
    return WaitingRow(
        **{name: getattr(node, name) for name in names},
        since_ns=ns_number(node.since) if node.since >= 0 else None,
        channel=node.channel if node.slots else None,
        switch=switches.get(node.rank, ""),
    )


def _called(call: Instance, algorithm: Algorithm) -> CalledAlgorithm:
    facts = {name: value for name in ("protocol", "slots") if (value := getattr(call.costs, name, None))}
    return CalledAlgorithm(
        collective=call.type, name=algorithm.name, ranks=algorithm.ranks, correct=algorithm.verdict, **facts
    )


def _wrong_bounds(bound: int | None, records: Records) -> Iterator[str]:
    """A line for the first lower bound that lies above the time that it bounds, of the run and of its collectives. The
    times of a fold that is not exact are no measure of a bound.
    """
    if records.fold is not None and not records.fold.exact:
        return
    table = records.collective
    took = np.where(table["end"] >= 0, table["end"] - table["start"], table["bound"])
    wrong = [("the run", bound, records.makespan)] if bound is not None and bound > records.makespan else []
    for row in np.flatnonzero(table["bound"] > took).tolist():
        call = f"collective {int(table['instance'][row])}, {table['type'][row]},"
        wrong.append((call, int(table["bound"][row]), int(took[row])))
    others = f" (and {len(wrong) - 1} more)" if len(wrong) > 1 else ""
    for subject, least, time in wrong[:1]:
        yield (
            f"this is a defect of astrasim_py, please report it: the lower bound of {subject} is "
            f"{format_time(least)}, above its time of {format_time(time)}; such bounds are left out{others}"
        )


def hop_latency(plan: Plan) -> dict[int, int]:
    """Collective instance → extra ps per hop of its messages, where there is any."""
    latency = plan.instances.column(lambda i: i.connections.latency_ps if i.connections else 0)
    return {index: int(latency[index]) for index in np.flatnonzero(latency).tolist()}


def _link_events(plan: Plan, records: Records) -> tuple[LinkEventRow, ...]:
    """What happened to links until the end of the run."""
    topology = plan.problem.topology
    if not topology.events:
        return ()
    from astrasim_py.topology.link_states import event_texts

    return tuple(
        LinkEventRow(at_ps=event.at_ps, text=text, failed=tuple(event.lost))
        for event, text in zip(topology.events, event_texts(topology), strict=True)
        if event.at_ps <= records.makespan or records.outcome.status != "done"
    )


def breakdown(records: Records) -> Breakdown:
    """Time of the rank with most exposed communication: compute, exposed communication, the rest."""
    rank, compute, exposed = None, 0, 0
    if len(records.exposed_comm):
        rank = int(records.exposed_comm.argmax())
        compute, exposed = int(records.compute[rank]), int(records.exposed_comm[rank])
    rest = max(records.makespan - compute - exposed, 0) if rank is not None else 0
    return Breakdown(
        rank=rank,
        compute_ns=ns_number(compute),
        exposed_comm_ns=ns_number(exposed),
        other_ns=ns_number(rest),
    )


def files_of(
    plan: Plan,
    records: Records,
    summary: Summary,
    *,
    timeline_of: bool | Sequence[int] = False,
    with_collectives: bool = True,
) -> dict[str, Iterable[bytes]]:
    """Name → content of the files of a point. `timeline_of`: all ranks or some; of all, none that is too large."""
    topology = plan.problem.topology
    per_rank = {name: getattr(records, name) for name in ("finish", "compute", "exposed_comm")}
    tables_of = {name: table for name, table in records.tables().items() if with_collectives or name != "collective"}
    tables = {"rank": Table({"rank": np.arange(len(records.finish)), **per_rank}), **tables_of}
    files: dict[str, Iterable[bytes]] = {"summary.json": (json_bytes(summary),)}
    for name, table in tables.items():
        if LEVELS.index(records.level) >= LEVELS.index(FIRST_LEVEL.get(name, "summary")):
            files[f"{name}.csv"] = csv_chunks(table)
    files["vertex.csv"] = csv_chunks(vertex_table(topology))
    files["edge.csv"] = csv_chunks(edge_table(topology, records.link["link"], plain=True))
    if timeline_of:
        from astrasim_py.report.timeline import timeline, within

        edges = edge_table(topology, records.link["link"])
        jobs = [*map(plan.job_name, range(plan.ranks))]
        npus = plan.npu_of[: plan.npu_ranks]
        qps = plan.problem.network.qps
        marks = [(event.at_ps, event.text) for event in summary.link_events]
        only = () if timeline_of is True else timeline_of
        pieces = timeline(records, edges, npus, jobs if any(jobs) else (), plan.switches, qps, marks, only)
        chunks = pieces if only else within(pieces)
        if chunks is not None:
            files["timeline.json"] = chunks
    return files


#: Larger networks keep only the links that carried something.
ALL_EDGES = 2**14
_PLAIN = re.compile(r"[A-Za-z][\w.]*", re.ASCII)


def vertex_table(topology: Topology) -> Table:
    """Every vertex: its name, its kind (``npu``, ``failed`` or ``switch``) and its coordinates. x and y are NaN if the
    topology has no natural drawing. Names are bytes if they are plain.
    """
    n = topology.vertices
    place = positions(topology)
    x, y = place if place is not None else (np.full(n, np.nan), np.full(n, np.nan))
    plain = _vertex_names(topology)
    name = [topology.vertex_name(v) for v in range(n)] if plain is None else plain
    codes = np.zeros(n, dtype=np.int8)
    codes[topology.npus :] = 1
    codes[list(topology.failed)] = 2
    kind = Categorical(codes, ("npu", "switch", "failed"))
    # Nine decimals are plenty for a drawing, and hide the last bit of sines that differ between machines.
    return Table({"vertex": np.arange(n), "name": name, "kind": kind, "x": np.round(x, 9), "y": np.round(y, 9)})


def _vertex_names(topology: Topology) -> np.ndarray | None:
    """Names of all vertices as bytes; None where they are not all plain."""
    if not all(_PLAIN.fullmatch(prefix) for prefix, _ in topology.switches):
        return None
    blocks = [np.arange(topology.npus).astype("S")]
    for prefix, count in topology.switches:
        plain = prefix.encode()
        blocks.append(np.array([plain]) if count is None else np.char.add(plain, np.arange(count).astype("S")))
    return np.concatenate(blocks)


def _named(topology: Topology, links: np.ndarray, names: np.ndarray) -> np.ndarray:
    """Names of links as bytes. `names`: of all vertices."""
    name = np.char.add(np.char.add(names[topology.src[links]], b"->"), names[topology.dst[links]])
    number = topology.parallel[links]
    several = np.flatnonzero(number)
    if len(several):
        longer = np.char.add(name[several], np.array([b"#%d" % (i + 1) for i in number[several].tolist()]))
        name = name.astype(f"S{max(name.dtype.itemsize, longer.dtype.itemsize)}")
        name[several] = longer
    return name


def edge_table(topology: Topology, used: np.ndarray, *, plain: bool = False) -> Table:
    """Links: name, ends, bandwidth (bytes per second, rounded) and latency (ps). `used`: int64: links that carried
    something; the others are left out of a network of more than `ALL_EDGES` links. `plain`: names as bytes, where they
    are plain: for writing them.
    """
    links = np.arange(topology.links) if topology.links <= ALL_EDGES else np.flatnonzero(np.bincount(used))
    names = _vertex_names(topology) if plain else None
    rates = np.array([round(rate) for rate in topology.bandwidths], dtype=np.int64)
    return Table(
        {
            "link": links.astype(np.int64),
            "name": [topology.link_name(i) for i in links.tolist()]
            if names is None
            else _named(topology, links, names),
            "src": topology.src[links].astype(np.int64),
            "dst": topology.dst[links].astype(np.int64),
            "bandwidth": rates[topology.bandwidth_class[links]] if len(rates) else np.zeros(0, np.int64),
            "latency": topology.latency_ps[links].astype(np.int64),
        }
    )
