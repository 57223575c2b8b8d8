"""Verdicts on algorithms that did not come from our builders: kept, and enforced as ``verify`` of a point says."""

import json
from collections.abc import Callable
from dataclasses import asdict, fields
from typing import Any

from astrasim_py.core.cache import Memo, cache_file, cached
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.results.store import result_edition
from astrasim_py.verification.verifier import Verdict, verify

__all__ = ["Verdict", "enforce", "kept_verdict", "verify"]

_VERDICTS: Memo[Verdict] = Memo(256)


def enforce(
    spec: Any, algorithm: Algorithm, verdict: Verdict, place: str, warn: Callable[[str], None], usage: str = ""
) -> None:
    """Refuse an algorithm or warn of it, as ``verify`` of a point says; `usage`: how it is used, in words."""
    subject = f"{algorithm.name} ({algorithm.collective}, {algorithm.ranks} ranks{usage})"
    refused, doubts = _objections(algorithm, verdict, spec.network.msccl)
    if refused:
        remedy = "correct the algorithm, or write verify: false to simulate it anyway"
        raise AlgorithmError(place, f"{subject} is wrong: {refused}", remedy)
    for doubt in doubts:
        if spec.verify == "strict":
            raise AlgorithmError(place, f"{subject} {doubt}", "write verify: true to go on with a warning")
        warn(f"{place}: {subject} {doubt}")


def kept_verdict(key: tuple, make: Callable[[], Verdict]) -> Verdict:
    """A verdict, from the user's cache where it was made before and is not that something is wrong."""

    def dump(verdict: Verdict) -> bytes | None:
        return None if verdict.ok is False else json.dumps(asdict(verdict)).encode()

    def kept() -> Verdict:
        path = cache_file("verdicts", (result_edition(), *key), ".json")
        return cached(path, make, load=_load_verdict, dump=dump)

    return _VERDICTS.get(key, kept)


def _load_verdict(data: bytes) -> Verdict | None:
    stored = json.loads(data)
    stored |= {key: tuple(stored[key]) for key in ("problems", "warnings")}
    if stored.keys() != {field.name for field in fields(Verdict)} or stored["correct"] is False:
        return None
    return Verdict(**stored)


def _objections(algorithm: Algorithm, verdict: Verdict, msccl: Any) -> tuple[str, list[str]]:
    """Why an algorithm is refused (empty: it is not), and what it is warned of."""
    if verdict.ok is False:
        return verdict.problem, []
    doubts = []
    if verdict.ok is None:
        doubts.append(f"could not be verified: {verdict.unknown}")
    slots = verdict.slots if msccl is None else msccl.slots_for(algorithm.protocol)
    if verdict.min_slots is not None and verdict.min_slots > slots:
        blocks = f"needs {verdict.min_slots} slots per connection, and there are {slots}"
        if msccl is not None:
            return f"deadlock: it {blocks} (network.msccl)", []
        doubts.append(f"{blocks} on MSCCL-style runtimes: it deadlocks there")
    elif verdict.min_slots_large is not None and verdict.min_slots_large > slots:
        doubts.append(
            f"needs up to {verdict.min_slots_large} slots per connection for large buffers, and there are {slots}"
        )
    if verdict.race_free is False:
        doubts += [problem for problem in verdict.problems if problem.startswith("race: ")]
    if verdict.order_consistent is False:
        doubts.append("adds in another order on some ranks: their floating-point results can differ")
    return "", doubts
