"""Synthesized schedules, kept by the content of what was asked for, so that each is searched once.

A schedule is kept in the user's cache folder as its columns, per version of the synthesizer; whoever reads it checks it
again. An algorithm made of one for a scenario is kept beside the results, too, and is used again whatever the version:
neither a search that a limit of time has cut nor another version need find the same.
"""

from __future__ import annotations

import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from functools import cache
from importlib.metadata import version
from math import gcd
from pathlib import Path

import numpy as np

from astrasim_py.core.cache import cache_file, cached
from astrasim_py.core.digest import digest
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmTable, Case
from astrasim_py.report.tables import json_text, ns_number, parse_json, rounded
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.synthesis.model.network import Network, Occupied
from astrasim_py.synthesis.model.schedule import Schedule, Search
from astrasim_py.synthesis.model.timing import CostModel
from astrasim_py.topology.model import Topology

#: Largest file of a kept schedule, bytes.
MAX_BYTES = 2**30
_COLUMNS = {"arc": np.int32, "chunk": np.int32, "start": np.int64, "reduces": np.bool_}


@dataclass(frozen=True, eq=False, kw_only=True)
class Request:
    """What is to be synthesized.

    Attributes
    ----------
    topology : Topology
    npus : tuple of int
        rank → NPU.
    collective : str
    size : int
        Full buffer, bytes.
    chunks : int or None
        Per shard (of broadcast and reduce: of the buffer); None: as many as suit the size.
    root : int or None
    cost : CostModel
    relays : bool
    occupied : tuple of Occupied
    seed, rounds : int
    budget : float or None
        Seconds.
    exact : float or None
        Seconds in which the result is to be proven the fastest; None: it is not tried.
    blocks : tuple of tuple of int, or None
        Of an all_to_all of unequal blocks: bytes from a to b at [a][b]; `size` is left out of account.
    """

    topology: Topology
    npus: tuple[int, ...]
    collective: str
    size: int
    chunks: int | None = 1
    root: int | None = None
    cost: CostModel = CostModel()
    relays: bool = False
    occupied: tuple[Occupied, ...] = ()
    seed: int = 1
    rounds: int = 200
    budget: float | None = None
    exact: float | None = None
    blocks: tuple[tuple[int, ...], ...] | None = None

    def network(self) -> Network:
        """Arcs of the group."""
        return Network.of(self.topology, self.npus, cost=self.cost, relays=self.relays, occupied=self.occupied)

    def demand(self, chunks: int) -> Demand:
        """What is wanted, in so many chunks per shard."""
        if self.blocks is None:
            return Demand.of(self.collective, len(self.npus), chunks, self.size, self.root)
        whole = gcd(*(size for a, row in enumerate(self.blocks) for b, size in enumerate(row) if a != b))
        return Demand.blocks(self.blocks, chunks, unit=max(whole // chunks if whole % chunks == 0 else whole, 1))

    def key(self) -> str:
        """What tells requests apart."""
        plain = {name: getattr(self, name) for name in self.__dataclass_fields__ if name != "topology"}
        return digest({**plain, "topology": self.topology.digest()})


@dataclass(frozen=True, slots=True, kw_only=True)
class Found:
    """A schedule that was asked for.

    Attributes
    ----------
    schedule : Schedule
    chunks : int
        Per shard.
    reused : bool
        Whether it was found before.
    """

    schedule: Schedule
    chunks: int
    reused: bool = False


@cache
def _edition() -> str:
    """What tells apart the programs that made schedules."""
    from astrasim_py import synthesis

    folder = Path(synthesis.__file__).parent
    sources = {str(path.relative_to(folder)): path.read_bytes() for path in sorted(folder.rglob("*.py"))}
    return digest({"version": version("astrasim-py"), "sources": sources})


def find(
    request: Request,
    *,
    fresh: bool = False,
    record: bool = True,
    jobs: int | None = None,
    progress: Callable | None = None,
) -> Found:
    """The schedule of a request: from the cache where it was found before.

    Parameters
    ----------
    request : Request
    fresh : bool
        Search in any case.
    record : bool
        False: only count the transfers; nothing is kept.
    jobs : int, optional
        Threads.
    progress : callable, optional
        Told of every run; see `astrasim_py.synthesis.search.greedy_search.Progress`.

    Raises
    ------
    TopologyError, AlgorithmError
    """
    return cached(
        cache_file("schedules", (request.key(), _edition()), ".npz") if record else None,
        lambda: _search(request, record, jobs, progress),
        load=lambda data: _read(data, request),
        dump=_packed,
        most=MAX_BYTES,
        fresh=fresh,
    )


def _search(request: Request, record: bool, jobs: int | None, progress: Callable | None) -> Found:
    from astrasim_py.synthesis.extras.exact import admit, prove
    from astrasim_py.synthesis.portfolio import best_chunks, find_schedule
    from astrasim_py.synthesis.search.multi_start import Effort

    network = request.network()
    if request.exact is not None:
        admit(network.ranks, request.exact)

    def run(chunks: int, rounds: int, budget: float | None) -> Schedule:
        effort = Effort(seed=request.seed, rounds=rounds, budget=budget, jobs=jobs, progress=progress)
        return find_schedule(network, request.demand(chunks), effort, record=record)

    if request.chunks is None:
        schedule, chunks = best_chunks(run, request.rounds, request.budget)
    else:
        schedule, chunks = run(request.chunks, request.rounds, request.budget), request.chunks
    if request.exact is not None:
        schedule = prove(schedule, seed=request.seed, limit=request.exact)
    return Found(schedule=schedule, chunks=chunks)


def measured(schedule: Schedule, algorithm: Algorithm, topology: Topology | None = None) -> tuple[int | None, str]:
    """What a simulator measures of an algorithm in the model of its schedule, by the engine that suits its size.

    Parameters
    ----------
    schedule : Schedule
    algorithm : Algorithm
        Made of it.
    topology : Topology, optional
        Another one, with the same NPUs.

    Returns
    -------
    int or None
        ps; None where it does not finish.
    str
        Which engine ran.
    """
    from astrasim_py.engine.simulation import simulate
    from astrasim_py.system.machine_models import NetworkModel
    from astrasim_py.system.problem import Job, Problem
    from astrasim_py.workload.microbenchmarks import Collective, generate

    network, demand = schedule.network, schedule.demand
    kind = algorithm.collective
    item = Collective(type=kind, size=demand.size, root=demand.root or 0)
    job = Job(
        workload=generate([item], network.ranks, name=kind),
        placement=network.npus,
        algorithms=AlgorithmTable({kind: [Case(make=lambda collective, ranks, root: algorithm)]}),
    )
    cost = NetworkModel(model=network.cost.model, link_busy=network.cost.link_busy)
    problem = Problem(topology=network.topology if topology is None else topology, jobs=(job,), network=cost)
    records = simulate(problem, engine="auto", level="summary")
    return records.makespan if records.outcome.status == "done" else None, records.engine


# -- files --------------------------------------------------------------------------------------------------------


def _packed(found: Found) -> bytes:
    schedule = found.schedule
    facts = {
        "chunks": found.chunks,
        "time": schedule.time,
        "bound": schedule.bound,
        "bound_kind": schedule.bound_kind,
        "search": asdict(schedule.search),
    }
    stream = io.BytesIO()
    columns = {name: getattr(schedule, name) for name in _COLUMNS}
    np.savez_compressed(stream, facts=np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8), **columns)
    return stream.getvalue()


def _read(data: bytes, request: Request) -> Found | None:
    """What is kept, if it is there and right."""
    from astrasim_py.synthesis.model.checker import check

    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            facts = json.loads(bytes(file["facts"]))
            columns = {name: file[name] for name in _COLUMNS}
        if any(column.dtype != _COLUMNS[name] or column.ndim != 1 for name, column in columns.items()):
            return None
        chunks, time, bound = (int(facts[name]) for name in ("chunks", "time", "bound"))
        search, kind = Search(**facts["search"]), str(facts["bound_kind"])
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return None
    network, demand = request.network(), request.demand(chunks)
    schedule = Schedule(
        network=network,
        demand=demand,
        **columns,
        time=time,
        transfers=len(columns["arc"]),
        bound=bound,
        bound_kind=kind,
        search=search,
    )
    return None if check(schedule) else Found(schedule=schedule, chunks=chunks, reused=True)


# -- algorithms of scenarios --------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True, kw_only=True)
class Synthesized:
    """An algorithm made for a point.

    Attributes
    ----------
    algorithm : Algorithm
    facts : dict
        What is known of it: ``file``, ``collective``, ``chunks``, ``time_ns``, ``bound_ns`` …
    """

    algorithm: Algorithm
    facts: dict


def algorithm_of(request: Request, *, clock: bool | None, folder: Path | None) -> Synthesized:
    """The algorithm of a request, from the folder of a scenario's results where it is there.

    Parameters
    ----------
    request : Request
    clock : bool or None
        See `astrasim_py.synthesis.emit.emitter.emit`.
    folder : Path or None
        Where it is kept beside the results; None: nowhere.
    """
    from astrasim_py.program.npz import write_npz
    from astrasim_py.synthesis.emit.emitter import emit

    name = f"{request.collective}-{digest((request.key(), clock))[:16]}.npz"
    path = None if folder is None else folder / name

    def make() -> Synthesized:
        found = find(request)
        return Synthesized(algorithm=emit(found.schedule, clock=clock), facts={"file": name, **facts_of(found)})

    def dump(made: Synthesized) -> bytes:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_npz(path, made.algorithm)
        return json_text(made.facts).encode()

    # What cannot be kept is passed over: the results themselves say what cannot be written.
    kept = None if path is None else path.with_suffix(".json")
    return cached(kept, make, load=lambda data: _read_algorithm(data, path, request), dump=dump)


def facts_of(found: Found) -> dict:
    """What is known of a schedule, as plain values."""
    schedule, search = found.schedule, found.schedule.search
    gap = Fraction(schedule.time - schedule.bound, schedule.bound) if schedule.bound else Fraction(0)
    return {
        "collective": schedule.demand.collective,
        "size_bytes": schedule.demand.size,
        "npus": schedule.network.ranks,
        "chunks": found.chunks,
        "time_ns": ns_number(schedule.time),
        "bound_ns": ns_number(schedule.bound),
        "bound": schedule.bound_kind,
        "efficiency": rounded(Fraction(schedule.efficiency).limit_denominator(10**12), 6),
        "gap": rounded(gap, 6),
        "optimal": schedule.optimal,
        "policy": search.policy,
        "transfers": schedule.transfers,
        "seed": search.seed,
        "rounds": search.rounds,
        "cut": search.cut,
    }


def _read_algorithm(facts: bytes, path: Path, request: Request) -> Synthesized | None:
    from astrasim_py.program.npz import read_npz

    facts = parse_json(facts.decode())
    algorithm = read_npz(path)
    fits = (algorithm.collective, algorithm.ranks) == (request.collective, len(request.npus))
    if not fits or not isinstance(facts, dict):
        return None
    return Synthesized(algorithm=replace(algorithm, source=""), facts=facts)
