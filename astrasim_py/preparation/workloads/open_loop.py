"""Workloads of messages that are sent at random times: a chain of waits on each sender, and a send behind each wait."""

from fractions import Fraction
from typing import NamedTuple

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.fields import FileText
from astrasim_py.core.units import PS_PER_S
from astrasim_py.preparation.workloads.section import JobSection
from astrasim_py.scenario.open_loop import Matrix, OpenLoop, Sizes
from astrasim_py.system.noise import logarithm
from astrasim_py.topology.placement import placement
from astrasim_py.topology.routing import mix
from astrasim_py.verification.bounds import Capacities
from astrasim_py.workload.blocks import read_blocks

#: Most messages of all senders together.
MAX_MESSAGES = 2**21
#: Streams of random numbers.
_GAP, _RECEIVER, _SIZE, _PHASE, _ORDER = range(5)


class Messages(NamedTuple):
    """The messages of a sender, in order: ps at which they are ready, ranks that receive them, bytes; int64[k]."""

    ready: np.ndarray
    receiver: np.ndarray
    nbytes: np.ndarray


def generated(job: JobSection) -> Workload:
    """The workload of a job. Raises ScenarioError: a rank that is not there, too many messages, nobody who sends."""
    spec: OpenLoop = job.spec.workload.open_loop
    place, ranks = job.at("workload.open_loop"), job.made_ranks
    if job.run.spec.noise is not None:
        problem = "would delay the times at which messages are sent, which are random already"
        raise ScenarioError(job.run.at("noise"), problem, "drop it")
    if job.spec.stragglers.compute_speed:
        problem = "would scale the times between messages"
        raise ScenarioError(job.at("stragglers.compute_speed"), problem, "drop it, or write a matrix of other rates")
    if ranks < 2:
        raise ScenarioError(place, "one rank has nobody to send to", "write ranks: 2 or more")
    shares = traffic(job, spec, ranks)
    rate = _rate(job, spec, shares, place)
    senders = [messages_of(spec, rank, shares[rank], rate, place) for rank in range(ranks)]
    total = sum(len(sender.ready) for sender in senders)
    if total > MAX_MESSAGES:
        problem = f"{total:,} messages are more than {MAX_MESSAGES:,}"
        raise ScenarioError(place, problem, "write fewer messages, or a shorter duration")
    if not total:
        raise ScenarioError(place, "no message is sent", "write a longer duration, or more load")
    return Workload(traces=_traces(senders), groups={}, name=job.name)


def traffic(job: JobSection, spec: OpenLoop, ranks: int) -> np.ndarray:
    """float64[ranks, ranks]: messages of each sender to each receiver; a row that sums to 1 has the whole rate."""
    others = np.ones((ranks, ranks)) - np.eye(ranks)
    if isinstance(spec.pattern, Matrix):
        place = job.at("workload.open_loop.pattern")
        rows = spec.pattern.matrix
        if isinstance(rows, FileText):
            rows = read_blocks(job.run.path(rows, place), ranks, place)
        if len(rows) != ranks:
            raise ScenarioError(place, f"{len(rows)} rows, and there are {ranks} ranks", "write a row per sender")
        shares = np.array(rows, dtype=np.float64) * others
        if not shares.any():
            raise ScenarioError(place, "nothing is sent", "write how much goes from each rank (row) to each")
        return shares / shares.sum(axis=1).max()
    if spec.hot_rank >= ranks:
        problem = f"rank {spec.hot_rank} does not exist: there are {ranks}"
        raise ScenarioError(job.at("workload.open_loop.hot_rank"), problem, f"write 0 to {ranks - 1}")
    if spec.pattern == "permutation":
        shares = np.zeros((ranks, ranks))
        # A random cycle: every rank sends to one other and receives from one.
        cycle = np.argsort(mix(spec.seed, _ORDER, np.arange(ranks)), kind="stable")
        shares[cycle, np.roll(cycle, -1)] = 1
        return shares
    shares = others / (ranks - 1)
    if spec.pattern in ("hotspot", "incast"):
        hot = 1.0 if spec.pattern == "incast" else spec.hot_share
        shares *= 1 - hot
        shares[:, spec.hot_rank] += hot
        shares[spec.hot_rank] = 0 if spec.pattern == "incast" else others[spec.hot_rank] / (ranks - 1)
    return shares


def _rate(job: JobSection, spec: OpenLoop, shares: np.ndarray, place: str) -> Fraction:
    """Bytes per second of a sender whose share is 1."""
    if spec.rate is not None:
        return spec.rate
    ranks = len(shares)
    npus = placement(job.topology, job.placement or "linear", ranks, place)
    capacities = Capacities(job.topology)
    kinds = capacities.kind[np.asarray(npus, dtype=np.int64)].tolist()
    limits = []
    for rates, used in ((capacities.egress, shares.sum(axis=1)), (capacities.ingress, shares.sum(axis=0))):
        limits += [rates[kind] / Fraction(part) for kind, part in zip(kinds, used.tolist(), strict=True) if part]
    return min(limits) * Fraction(spec.load or 0)


def messages_of(spec: OpenLoop, rank: int, shares: np.ndarray, rate: Fraction, place: str) -> Messages:
    """The messages of a sender; each draw is a hash of the seed, the sender and the number of the message.

    `shares`: float64[ranks]: of its messages to each rank. `rate`: bytes per second of a sender whose shares sum to 1.
    """
    share = float(shares.sum())
    if not share:
        return Messages(*(np.zeros(0, dtype=np.int64) for _ in range(3)))
    gap = float(spec.size.mean * PS_PER_S / (rate * Fraction(share)))
    if gap < 1:
        raise ScenarioError(place, "messages follow each other in less than 1 ps", "write less load, or larger sizes")
    count = spec.messages or 0
    if spec.duration is not None:
        expected = spec.duration / gap
        if expected > MAX_MESSAGES:
            problem = f"about {expected:,.0f} messages of a sender are more than {MAX_MESSAGES:,}"
            raise ScenarioError(place, problem, "write a shorter duration, or less load")
        count = int(expected + 10 * expected**0.5 + 20)
    if count > MAX_MESSAGES:
        raise ScenarioError(place, f"{count:,} messages are more than {MAX_MESSAGES:,}", "write fewer messages")
    number = np.arange(count)
    if spec.arrivals == "poisson":
        gaps = (-logarithm(_uniform(spec.seed, _GAP, rank, number)) * gap).astype(np.int64)
    else:
        phase = float(_uniform(spec.seed, _PHASE, rank, np.zeros(1, dtype=np.int64))[0])
        begins = ((number + phase) * gap).astype(np.int64)
        gaps = begins - np.concatenate([[0], begins[:-1]])
    ready = np.cumsum(gaps)
    receiver = _receivers(spec, rank, shares / share, number)
    nbytes = _sizes(spec.size, _uniform(spec.seed, _SIZE, rank, number))
    kept = slice(None) if spec.duration is None else slice(int(np.searchsorted(ready, spec.duration)))
    return Messages(ready[kept], receiver[kept], nbytes[kept])


def _uniform(seed: int, stream: int, rank: int, number: np.ndarray) -> np.ndarray:
    """float64[k] above 0, up to 1; the same on every machine."""
    words = mix(seed, stream, rank, number)
    return ((words >> np.uint64(11)) + np.uint64(1)).astype(np.float64) * 2.0**-53


def _receivers(spec: OpenLoop, rank: int, shares: np.ndarray, number: np.ndarray) -> np.ndarray:
    if spec.pattern == "all_to_all":
        ranks = len(shares)
        return (rank + 1 + number % (ranks - 1)) % ranks
    ends = np.cumsum(shares)
    draws = _uniform(spec.seed, _RECEIVER, rank, number) * ends[-1]
    return np.searchsorted(ends, draws).astype(np.int64)


def _sizes(spec: Sizes, draws: np.ndarray) -> np.ndarray:
    if spec.weights:
        sizes, weights = (np.array(column) for column in zip(*spec.weights, strict=True))
        ends = np.cumsum(weights)
        drawn: np.ndarray = sizes.astype(np.int64)[np.searchsorted(ends, draws * ends[-1])]
        return drawn
    if spec.uniform is not None:
        low, high = spec.uniform
        return low + np.minimum((draws * float(high - low + 1)).astype(np.int64), high - low)
    if spec.exponential is not None:
        return np.maximum((-logarithm(draws) * float(spec.exponential)).astype(np.int64), 1)
    return np.full(len(draws), spec.fixed or 0, dtype=np.int64)


def _traces(senders: list[Messages]) -> tuple[ExecutionTrace, ...]:
    """A trace per rank: its waits, the sends behind them, and a receive for every message that it gets."""
    source = np.concatenate([np.full(len(sender.ready), rank) for rank, sender in enumerate(senders)])
    number = np.concatenate([np.arange(len(sender.ready)) for sender in senders])
    receiver, nbytes = (np.concatenate([getattr(s, name) for s in senders]) for name in ("receiver", "nbytes"))
    order = np.argsort(receiver, kind="stable")
    bounds = np.searchsorted(receiver[order], np.arange(len(senders) + 1))
    traces = []
    for rank, sender in enumerate(senders):
        came, sent = order[bounds[rank] : bounds[rank + 1]], len(sender.ready)
        none, waits = np.full(sent, MISSING, dtype=np.int64), np.arange(sent, dtype=np.uint64)
        # Waits are nodes 0..k-1, sends k..2k-1, receives follow; a wait depends on the one before it.
        counts = np.repeat([1, 0], [2 * sent, len(came)])
        counts[: min(sent, 1)] = 0
        ptr = np.concatenate([[0], np.cumsum(counts)]).astype(np.int64)
        parents = np.concatenate([waits[:-1] if sent else waits, waits])
        gaps = np.diff(sender.ready, prepend=0)
        columns = {
            "comm_src": np.concatenate([none, np.full(sent, rank), source[came]]),
            "comm_dst": np.concatenate([none, sender.receiver, np.full(len(came), rank)]),
            "comm_tag": np.concatenate([none, np.arange(sent), number[came]]),
            "comm_size": np.concatenate([none, sender.nbytes, nbytes[came]]),
            "duration_ps": np.concatenate([gaps, none, np.full(len(came), MISSING)]),
            "is_cpu_op": np.zeros(2 * sent + len(came), dtype=np.int64),
        }
        kinds = (NodeType.COMP, NodeType.COMM_SEND, NodeType.COMM_RECV)
        traces.append(
            ExecutionTrace.from_columns(
                node_id=np.arange(2 * sent + len(came), dtype=np.uint64),
                type=np.repeat(np.array(kinds, dtype=np.int8), [sent, sent, len(came)]),
                data_deps=Csr(ptr, parents),
                duration_micros=np.concatenate([-(-gaps // 10**6), np.zeros(sent + len(came), int)]).astype(np.uint64),
                names=["wait"] * sent + ["send"] * sent + ["receive"] * len(came),
                **columns,
            )
        )
    return tuple(traces)
