"""A cache of synthesized schedules: each request is searched once.

The cache folder of the user holds the columns of a schedule per edition of the synthesizer; they are checked again when
they are read. The results of a scenario hold its algorithms, too, which the same edition uses again: a search that a
limit of time has cut may find another schedule.
"""

import io
import json
import zipfile
from collections.abc import Callable
from dataclasses import asdict, dataclass, replace
from fractions import Fraction
from pathlib import Path
from typing import Any

import numpy as np

from astrasim_py.core.cache import cache_file, cached
from astrasim_py.core.choices import QUEUEING_MODELS
from astrasim_py.core.digest import digest
from astrasim_py.core.edition import edition
from astrasim_py.core.exact_json import json_text, parse_json
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.results.values import ns_number, rounded
from astrasim_py.synthesis.model.checker import check
from astrasim_py.synthesis.model.schedule import Bound, Schedule, Search, share_of_bound
from astrasim_py.synthesis.model.timing import CostModel
from astrasim_py.synthesis.request import Request, SynthesisResult
from astrasim_py.system.compatible import NIC, SYNTHESIS, exclusions
from astrasim_py.system.machine_models import NetworkModel, NicModel
from astrasim_py.verification.bounds import CallBounds

#: Parts of the package that decide a schedule and its algorithm: all that the synthesizer imports.
DECIDING = ("builders", "chakra", "collectives", "core", "cuts", "program", "synthesis", "topology")
#: Largest file of a kept schedule, bytes.
MAX_BYTES = 2**30
_COLUMNS = {"arc": np.int32, "chunk": np.int32, "start": np.int64, "reduces": np.bool_}


def planned_cost(network: NetworkModel, nic: NicModel | None = None) -> tuple[CostModel, str]:
    """The costs for which schedules are planned on a network, and a line on what they leave out; empty where nothing.

    Schedules are planned for links that serve one message at a time.
    """
    model = network.model if network.model in QUEUEING_MODELS else "cut_through"
    excluded = exclusions({"network": network, NIC: nic}, (SYNTHESIS,))
    features = [row.feature.replace("network.model", f"network.model: {network.model}") for row in excluded]
    note = f"the schedule is planned for {model}, and the scenario has {', '.join(features)}: another one may be faster"
    return CostModel(model=model, link_busy=network.link_busy), note if features else ""


def find(
    request: Request,
    *,
    fresh: bool = False,
    record: bool = True,
    jobs: int | None = None,
    progress: Callable | None = None,
    best_so_far: bool = False,
) -> SynthesisResult:
    """The schedule of a request, from the cache where it was found before, unless `fresh`.

    Without `record` transfers are only counted, and nothing is kept. See `synthesis.solve`.
    """
    from astrasim_py.synthesis.solve import solve

    return cached(
        cache_file("schedules", (request.key(), edition(*DECIDING)), ".npz") if record else None,
        lambda: solve(request, record=record, jobs=jobs, progress=progress, best_so_far=best_so_far),
        load=lambda data: _read(data, request),
        dump=lambda result: None if result.interrupted else _packed(result),
        most=MAX_BYTES,
        fresh=fresh,
    )


def _packed(result: SynthesisResult) -> bytes:
    schedule = result.schedule
    facts = {
        "chunks": result.chunks,
        "proof": result.proof,
        "time": schedule.time,
        "bound": schedule.bound,
        "bound_kind": schedule.bound_kind,
        "search": asdict(schedule.search),
    }
    stream = io.BytesIO()
    columns = {name: getattr(schedule, name) for name in _COLUMNS}
    np.savez_compressed(stream, facts=np.frombuffer(json.dumps(facts).encode(), dtype=np.uint8), **columns)
    return stream.getvalue()


def _read(data: bytes, request: Request) -> SynthesisResult | None:
    """The schedule in a cache file, if it is right."""
    try:
        with np.load(io.BytesIO(data), allow_pickle=False) as file:
            facts = json.loads(bytes(file["facts"]))
            columns = {name: file[name] for name in _COLUMNS}
        if any(column.dtype != _COLUMNS[name] or column.ndim != 1 for name, column in columns.items()):
            return None
        chunks, time, bound = (int(facts[name]) for name in ("chunks", "time", "bound"))
        search, kind, proof = Search(**facts["search"]), str(facts["bound_kind"]), str(facts["proof"])
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile):
        return None
    limit = Bound(bound, kind)
    schedule = Schedule.of(request.network(), request.demand(chunks), tuple(columns.values()), time, search, limit)
    return None if check(schedule) else SynthesisResult(schedule=schedule, chunks=chunks, proof=proof, reused=True)


@dataclass(frozen=True, slots=True, kw_only=True)
class SynthesizedAlgorithm:
    """An algorithm made for a point."""

    algorithm: Algorithm
    facts: dict[str, Any]  # what is known of it: ``file``, ``collective``, ``chunks``, ``time_ns``, ``bound_ns`` …


def algorithm_of(request: Request, *, clock: bool | None, folder: Path | None) -> SynthesizedAlgorithm:
    """The algorithm of a request, from the folder of a scenario's results where it is there (None: there is none)."""
    from astrasim_py.program.files import write_npz
    from astrasim_py.synthesis.emit.emitter import emit

    name = f"{request.collective}-{digest((request.key(), clock))[:16]}.npz"

    def make() -> SynthesizedAlgorithm:
        result = find(request)
        return SynthesizedAlgorithm(
            algorithm=emit(result.schedule, clock=clock), facts={"file": name, **facts_of(result)}
        )

    if folder is None:
        return make()
    path = folder / name

    def dump(synthesis: SynthesizedAlgorithm) -> bytes:
        path.parent.mkdir(parents=True, exist_ok=True)
        write_npz(path, synthesis.algorithm)
        return json_text(synthesis.facts | {"edition": edition(*DECIDING)}).encode()

    # Ignore files that cannot be written: the results report that.
    return cached(path.with_suffix(".json"), make, load=lambda data: _read_algorithm(data, path, request), dump=dump)


def facts_of(result: SynthesisResult) -> dict[str, Any]:
    schedule, search = result.schedule, result.schedule.search
    gap = Fraction(schedule.time - schedule.bound, schedule.bound) if schedule.bound else Fraction(0)
    return {
        "collective": schedule.demand.collective,
        "size_bytes": schedule.demand.size,
        "npus": schedule.network.ranks,
        "chunks": result.chunks,
        "time_ns": ns_number(schedule.time),
        "bound_ns": ns_number(schedule.bound),
        "bound": schedule.bound_kind,
        "bound_by": result.proof,
        "efficiency": rounded(Fraction(schedule.efficiency).limit_denominator(10**12), 6),
        "gap": rounded(gap, 6),
        "optimal": schedule.optimal,
        "policy": search.policy,
        "transfers": schedule.transfers,
        "seed": search.seed,
        "rounds": search.rounds,
        "cut": search.cut,
    }


def facts_in_network(facts: dict[str, Any], request: Request, better: tuple[Algorithm, int] | None) -> dict[str, Any]:
    """The facts of a synthesized algorithm where switches may reduce, or of an algorithm in the network with its time
    that is taken in its place."""
    bounds, root = CallBounds(request.topology), request.root or 0
    bound, _ = bounds.of(request.collective, request.size, request.npus, root, switches=True)
    time, facts_of_better = round(facts["time_ns"] * 1000), {}
    if better is not None:
        algorithm, time = better
        facts_of_better = {"policy": f"in the network: {algorithm.name}", "chunks": algorithm.chunks}
        facts_of_better["transfers"] = algorithm.messages
    gap = Fraction(time - bound, bound) if bound else Fraction(0)
    return (
        facts
        | facts_of_better
        | {
            "time_ns": ns_number(time),
            "bound_ns": ns_number(bound),
            "bound": "switches",
            "efficiency": rounded(share_of_bound(bound, time), 6),
            "gap": rounded(gap, 6),
            "optimal": time == bound,
        }
    )


def _read_algorithm(data: bytes, path: Path, request: Request) -> SynthesizedAlgorithm | None:
    from astrasim_py.program.files import read_npz

    facts = parse_json(data.decode())
    algorithm = read_npz(path)
    fits = (algorithm.collective, algorithm.ranks) == (request.collective, len(request.npus))
    if not fits or not isinstance(facts, dict) or facts.pop("edition", None) != edition(*DECIDING):
        return None
    return SynthesizedAlgorithm(algorithm=replace(algorithm, source=""), facts=facts)
