"""The search that answers a request."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import replace
from typing import Any

from astrasim_py.core.apart import Shielded
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.synthesis.chunk_choice import ChunkChoice
from astrasim_py.synthesis.model.network import Network
from astrasim_py.synthesis.portfolio import find_schedule
from astrasim_py.synthesis.request import Request, SynthesisResult
from astrasim_py.synthesis.search.multi_start import Effort

#: Seconds for the linear program that bounds an all_to_all, if a budget does not say less, and its share of a budget.
_SOLVER_S, _SHARE = 20.0, 0.25
#: Share above its bound from which an all_to_all is bounded by a linear program, too.
_NEAR = 0.001
#: Links × ranks up to which what bounds the network is always told.
_QUICK = 2**16


def solve(
    request: Request,
    *,
    record: bool = True,
    jobs: int | None = None,
    progress: Callable | None = None,
    best_so_far: bool = False,
) -> SynthesisResult:
    """Search for the schedule of a request. `best_so_far`: an interrupt ends the search with the best schedule found,
    if there is one; a second one ends everything. Raises TopologyError, AlgorithmError.
    """
    effort = Effort(
        seed=request.seed, rounds=request.rounds, budget=request.budget, jobs=jobs, progress=progress,
        memory=request.memory,
    )  # fmt: skip
    if not best_so_far:
        return _solved(request, effort, record)
    return _ended_early(lambda: _solved(request, effort, record), effort.halt.set)


def _ended_early(work: Callable[[], Any], end: Callable[[], None]) -> Any:
    """The result of some work that the first interrupt asks to end early, by calling `end`; the second leaves it."""
    if threading.current_thread() is not threading.main_thread():
        return work()
    thread = Shielded(work, daemon=True)
    try:
        thread.start()
        thread.wait()
    except KeyboardInterrupt:
        end()
        thread.wait()
    return thread.answer()


def _admit_bytes(request: Request, network: Network) -> None:
    """Raises AlgorithmError: chunks without bytes would have to wait in switches for others in the order of sums."""
    least = network.ranks * (request.chunks or 1)
    if request.collective == "all_reduce" and request.size < least and not network.direct:
        problem = f"{request.size} B are fewer bytes than the {least} chunks"
        raise AlgorithmError(request.collective, problem, f"write at least {least} B")


def _solved(request: Request, effort: Effort, record: bool) -> SynthesisResult:
    network = request.network()
    if request.exact is not None:
        from astrasim_py.synthesis.extras.exact import admit, prove

        admit(network.ranks, request.exact)
    _admit_bytes(request, network)
    if request.chunks is None:
        proof = request.proof(0.0)
        schedule, chunks = ChunkChoice(request, network, proof, effort, record=record).schedule()
    else:
        schedule, chunks = find_schedule(network, request.demand(request.chunks), effort, record=record), request.chunks
        # What meets its bound needs no other one, which takes longer than some searches.
        quick = len(network.links) * network.ranks <= _QUICK
        proof = request.proof(0.0) if quick or not schedule.optimal else None
    if request.exact is not None and not effort.halt.on:
        schedule = prove(schedule, seed=request.seed, limit=request.exact)
    least = max(schedule.bound, 0 if proof is None else proof.time_ps)
    if request.collective == "all_to_all" and schedule.time > least * (1 + _NEAR) and not effort.halt.on:
        # The linear program takes longer than some searches: it is solved where it can tell more.
        left = _SOLVER_S if request.budget is None else min(_SHARE * request.budget, _SOLVER_S)
        other = request.proof(left)
        proof = other if proof is None or (other is not None and other.time_ps > proof.time_ps) else proof
    if proof is not None and proof.time_ps > schedule.bound:
        schedule = replace(schedule, bound=proof.time_ps, bound_kind=proof.kind)
    return SynthesisResult(
        schedule=schedule, chunks=chunks, proof="" if proof is None else str(proof), interrupted=effort.halt.on
    )
