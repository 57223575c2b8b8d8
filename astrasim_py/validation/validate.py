"""Validation: every measured case and every closed form run here, and how far off each is.

The packaged set needs nothing but the package. Its closed forms are the messages that follow each other, in rounds of
equal messages that share no link; nothing is taken from the simulator: neither sizes, nor routes, nor rates. Its
figures of ASTRA-sim are data; the input files that they belong to are written into a temporary folder.
"""

import json
import os
import tempfile
from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from importlib.resources import files
from itertools import product
from pathlib import Path
from statistics import median
from typing import Any

import numpy as np
import yaml

from astrasim_py.astra_sim.input_set import read_inputs
from astrasim_py.astra_sim.run_inputs import run_inputs
from astrasim_py.chakra.et_io import write_prefix
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.choices import NETWORK_MODELS
from astrasim_py.core.errors import AstraError, InternalError, UsageError
from astrasim_py.core.records import Records
from astrasim_py.runs.pool import Killed, cores, run_tasks
from astrasim_py.runs.progress import Progress
from astrasim_py.validation.cases import AstraSimCase
from astrasim_py.workload.items import Collective
from astrasim_py.workload.microbenchmarks import generate

#: Set of the packaged measured times of collectives, which are compared elsewhere.
MEASURED = "measured"
#: Latency of a link and time per byte (50 GB/s), ps.
LATENCY, BYTE = 500_000, 20


def _halves(n: int, size: int) -> list[int]:
    return [size >> i for i in range(1, n.bit_length())]


#: (algorithm, collective) → bytes of each round's message, for n ranks (a power of two where it halves) and S bytes.
ROUNDS: Mapping[tuple[str, str], Callable[[int, int], list[int]]] = {
    ("ring", "all_reduce"): lambda n, s: [s // n] * (2 * (n - 1)),
    ("ring", "all_gather"): lambda n, s: [s // n] * (n - 1),
    ("ring", "reduce_scatter"): lambda n, s: [s // n] * (n - 1),
    ("ring", "broadcast"): lambda n, s: [s] * (n - 1),
    ("direct", "all_reduce"): lambda n, s: [s // n] * 2,
    ("direct", "all_gather"): lambda n, s: [s // n],
    ("direct", "all_to_all"): lambda n, s: [s // n],
    ("pairwise", "all_to_all"): lambda n, s: [s // n] * (n - 1),
    ("bruck", "all_gather"): lambda n, s: _halves(n, s)[::-1],
    ("halving_doubling", "all_reduce"): lambda n, s: _halves(n, s) + _halves(n, s)[::-1],
    ("halving_doubling", "reduce_scatter"): _halves,
    ("recursive_doubling", "all_reduce"): lambda n, s: [s] * (n.bit_length() - 1),
    ("binomial_tree", "broadcast"): lambda n, s: [s] * (n.bit_length() - 1),
    ("dissemination", "barrier"): lambda n, s: [0] * (n.bit_length() - 1),
}

#: Links that a message crosses, by shape; every pair of ranks has links of its own.
HOPS = {"fully_connected": 1, "switch": 2}
#: One round sends to all ranks at once: through a switch those messages would share a link.
_AT_ONCE = "direct"


@dataclass(frozen=True, slots=True, kw_only=True)
class ClosedForm:
    """One algorithm on one network, with the time that it must take."""

    algorithm: str
    collective: str
    npus: int
    size: int
    shape: str
    model: str

    set = "closed_forms"
    judged = True

    @property
    def place(self) -> str:
        return f"{self.algorithm} {self.collective}"

    @property
    def label(self) -> str:
        return f"{self.npus} NPUs, {self.size} B, {self.shape}, {self.model}"

    def expected_ps(self) -> int:
        """The sum over rounds."""
        hops = HOPS[self.shape]
        times = hops if self.model == "store_and_forward" else 1
        return sum(
            hops * LATENCY + times * nbytes * BYTE
            for nbytes in ROUNDS[self.algorithm, self.collective](self.npus, self.size)
        )

    def run(self, engine: str = "auto") -> Records:
        from astrasim_py.engine.simulation import simulate
        from astrasim_py.preparation.from_python import collective
        from astrasim_py.topology.shapes import SHAPES

        keys = {"npus": self.npus, "bandwidth": Fraction(10**12, BYTE), "latency": LATENCY}
        topology = SHAPES[self.shape].model_validate(keys).build()
        problem = collective(self.collective, self.size, topology, algorithm=self.algorithm, model=self.model)
        return simulate(problem, engine=engine, level="summary")


def closed_forms() -> Iterator[ClosedForm]:
    for algorithm, collective in ROUNDS:
        sizes = (0,) if collective == "barrier" else (4096, 2**24)
        shapes = [shape for shape in HOPS if algorithm != _AT_ONCE or shape == "fully_connected"]
        for npus, size, shape, model in product((2, 8), sizes, shapes, sorted(NETWORK_MODELS)):
            yield ClosedForm(algorithm=algorithm, collective=collective, npus=npus, size=size, shape=shape, model=model)


@contextmanager
def packaged_items(sets: Sequence[str] = ()) -> Iterator[list[AstraSimCase | ClosedForm]]:
    """The packaged items; the files that they name exist while the context is open. `sets`: only these; all where
    empty. Measured times are not among them. Raises UsageError: there is no such set.
    """
    packaged = json.loads(files("astrasim_py").joinpath("data/validation/astra_sim.json").read_text("utf-8"))
    names = dict.fromkeys([ClosedForm.set, *(case["set"] for case in packaged["cases"]), MEASURED])
    for name in sets:
        if name not in names:
            raise UsageError("--only", f'there is no packaged set "{name}"', f"write one of {', '.join(names)}")
    with tempfile.TemporaryDirectory(prefix="astrasim_py-validate-") as folder:
        items: list[AstraSimCase | ClosedForm] = [*closed_forms(), *_cases(Path(folder), packaged)]
        yield [item for item in items if not sets or item.set in sets]


def _cases(folder: Path, packaged: Mapping) -> Iterator[AstraSimCase]:
    for name, network in packaged["networks"].items():
        (folder / f"{name}.yml").write_text(yaml.safe_dump(network), "utf-8")
    for name, system in packaged["systems"].items():
        (folder / f"{name}.json").write_text(json.dumps(system), "utf-8")
    memory = folder / "no_memory_expansion.json"
    memory.write_text(json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}), "utf-8")
    for prefix, ring in packaged["injected"].items():
        (folder / prefix).parent.mkdir(parents=True, exist_ok=True)
        write_prefix(folder / prefix, ring_traces(ring["npus"], ring["message"], ring["reduce_micros"]))
    workloads: dict[tuple, tuple[Path, ...]] = {}
    for number, case in enumerate(packaged["cases"]):
        npus = int(np.prod(packaged["networks"][case["network"]]["npus_count"]))
        ((collective, size),) = case["workload"].items()
        key = (collective, size, npus)
        if key not in workloads:
            workloads[key] = _workload(folder, *key)
        times = case.get("times", [])
        flags: dict[str, Any] = {
            key: Fraction(v) if key == "injection_scale" else v for key, v in case.get("flags", {}).items()
        }
        yield AstraSimCase(
            place=f"packaged case {number}",
            set=case["set"],
            label=f"{case['network']} {case['backend']} {collective} {size} {case['system']}",
            backend=case["backend"],
            network=folder / f"{case['network']}.yml",
            system=folder / f"{case['system']}.json",
            memory=memory,
            workload=workloads[key],
            folder=folder,
            npus=npus,
            finishes=bool(times),
            times=_per_rank(times, npus),
            exposed=_per_rank(case.get("exposed", times), npus),
            **flags,
        )


def _per_rank(values: Sequence[int], npus: int) -> tuple[int, ...]:
    return tuple(values) * npus if len(values) == 1 else tuple(values)


def _workload(folder: Path, collective: str, size: int, npus: int) -> tuple[Path, ...]:
    """One file for all ranks; `size` is what ASTRA-sim calls ``comm_size``: of an all_gather one shard."""
    full = size * npus if collective == "all_gather" else size
    workload = generate([Collective(type=collective, size=full)], npus, name=collective)
    prefix = folder / f"{collective}_{size}_{npus}"
    return (write_prefix(prefix, workload.traces[:1])[0],) * npus


def ring_traces(npus: int, message: int, reduce_micros: int) -> list[ExecutionTrace]:
    """A ring all-reduce as one chain per rank: send, receive, reduce, then send, receive; absolute sizes in bytes."""
    pair, steps = [NodeType.COMM_SEND, NodeType.COMM_RECV], npus - 1
    kind = np.array([*pair, NodeType.COMP] * steps + pair * steps)
    count = len(kind)
    sends, reduces = kind == NodeType.COMM_SEND, kind == NodeType.COMP
    traces = []
    for rank in range(npus):
        after, before = (rank + 1) % npus, (rank - 1) % npus
        trace = ExecutionTrace.from_columns(
            node_id=np.arange(count),
            type=kind,
            data_deps=Csr(np.maximum(np.arange(count + 1) - 1, 0), np.arange(count - 1, dtype=np.uint64)),
            duration_micros=np.where(reduces, reduce_micros, 0),
            comm_size=np.where(reduces, MISSING, message),
            comm_tag=np.where(reduces, MISSING, 0),
            comm_src=np.where(reduces, MISSING, np.where(sends, rank, before)),
            comm_dst=np.where(reduces, MISSING, np.where(sends, after, rank)),
        )
        traces.append(trace)
    return traces


Item = AstraSimCase | ClosedForm

#: Rows that a worker is handed at once: enough that they share what they read, few enough to even out the load.
BATCH = 12


@dataclass(frozen=True, slots=True)
class Finding:
    """The comparison of one item. `rel_error`: largest of |ours - theirs| / theirs over ranks and figures; 1 where one
    side alone yields figures; None where neither does.
    """

    place: str
    set: str
    label: str
    judged: bool  # whether a difference counts
    exact: bool  # every figure is equal, or neither side yields one
    rel_error: float | None
    note: str = ""  # what differs, in a line; empty where nothing does
    engine: str = ""  # which engine ran; empty where none did


@dataclass(frozen=True, slots=True, kw_only=True)
class FindingGroup:
    """Findings of one set."""

    group: str
    judged: bool
    cases: int
    exact: int
    median_rel_error: float | None
    worst_rel_error: float | None


@dataclass(frozen=True, slots=True, kw_only=True)
class Report:
    """All findings, and the groups in the order in which they first appear."""

    findings: tuple[Finding, ...]
    groups: tuple[FindingGroup, ...]

    @property
    def judged(self) -> FindingGroup:
        """All judged findings as one group."""
        return _group("all", True, [f for f in self.findings if f.judged])

    @property
    def engines(self) -> dict[str, int]:
        """Engine name → number of items it ran."""
        return dict(sorted(Counter(f.engine for f in self.findings if f.engine).items()))

    @property
    def off(self) -> tuple[Finding, ...]:
        """Findings that are not exact, those that count first."""
        return tuple(sorted((f for f in self.findings if not f.exact), key=lambda f: not f.judged))

    @property
    def passes(self) -> bool:
        return all(f.exact for f in self.findings if f.judged)


def validate(
    items: Sequence[Item], *, engine: str = "auto", jobs: int | None = None, progress: Progress | None = None
) -> Report:
    """Run every item. `jobs`: worker processes; None is one per core. 1 runs here. Returns findings in the order of the
    items.
    """
    progress = Progress() if progress is None else progress
    batches = _batches(items)
    tasks = [(engine, [items[number] for number in batch]) for batch in batches]
    workers = min(cores() if jobs is None else jobs, len(batches))
    finding_of: dict[int, Finding] = {}
    progress.begin(len(items), 0)
    try:
        for batch, results in run_tasks(find_all, tasks, workers) if workers > 1 else enumerate(map(find_all, tasks)):
            if isinstance(results, Killed):
                results = [_finding(item, results.reason) for item in tasks[batch][1]]
            for number, finding in zip(batches[batch], results, strict=True):
                finding_of[number] = finding
                progress.point(finding.label, "done" if finding.exact else "off", 0)
    finally:
        progress.end()
    findings = tuple(finding_of[number] for number in range(len(items)))
    names = dict.fromkeys((f.set, f.judged) for f in findings)
    groups = tuple(_group(*name, [f for f in findings if (f.set, f.judged) == name]) for name in names)
    return Report(findings=findings, groups=groups)


def _batches(items: Sequence[Item]) -> list[list[int]]:
    """Numbers of items that share inputs, together; the largest first, so that none is left over at the end."""

    def shared(number: int) -> tuple:
        item = items[number]
        if isinstance(item, ClosedForm):
            return (0, "", "", "", number)
        return (-item.npus, str(item.workload[0]), str(item.system), str(item.network), number)

    order = sorted(range(len(items)), key=shared)
    return [order[i : i + BATCH] for i in range(0, len(order), BATCH)]


#: Files read in this process, for the next row that names them.
_read: dict = {}


def find_all(task: tuple[str, list[Item]]) -> list[Finding]:
    """Findings of some items; lets no exception out."""
    engine, items = task
    return [find(item, engine) for item in items]


def find(item: Item, engine: str = "auto") -> Finding:
    try:
        if isinstance(item, ClosedForm):
            records = item.run(engine)
            return _compared(item, (records.makespan,), (item.expected_ps(),), (), records.engine)
        finished, exposed, ran, stuck = _run(item, engine)
    except AstraError as error:
        failed_there = isinstance(item, AstraSimCase) and not item.finishes
        return _finding(item, "" if failed_there else " ".join(error.lines()))
    except Exception as error:
        if os.environ.get("ASTRASIM_DEBUG") == "1":
            raise
        return _finding(item, f"a defect of astrasim_py, please report it: {type(error).__name__}: {error}")
    if stuck:
        return _finding(item, stuck if item.finishes else "", ran)
    if not item.finishes:
        return _finding(item, f"ASTRA-sim does not finish; here it takes {max(finished)} ns", ran)
    return _compared(item, finished + exposed, item.times + item.exposed, ("time", "exposed communication"), ran)


def _run(case: AstraSimCase, engine: str) -> tuple[tuple[int, ...], tuple[int, ...], str, str]:
    """Finish and exposed communication of every rank, ns; which engine ran; and why it did not end, if so."""
    inputs = read_inputs(case, _read)
    result = run_inputs(inputs, engine=engine, cache=_read)
    if result.outcome.status == "limit":
        raise InternalError(result.outcome.cause)
    # ASTRA-sim does not miss a message that nobody receives, where all NPUs finish.
    ended = result.outcome.status == "done" or (case.finishes and None not in result.finish_ns)
    if not ended:
        return (), (), result.records.engine, result.outcome.cause
    finished, exposed = ([ns for ns in times if ns is not None] for times in (result.finish_ns, result.exposed_ns))
    return tuple(finished), tuple(exposed), result.records.engine, ""


def _compared(item: Item, ours: Sequence[int], theirs: Sequence[int], figures: Sequence[str], engine: str) -> Finding:
    if tuple(ours) == tuple(theirs):
        return _finding(item, "", engine, 0.0)
    errors = [abs(a - b) / max(b, 1) for a, b in zip(ours, theirs, strict=True)]
    worst = max(range(len(errors)), key=errors.__getitem__)
    where = ""
    if figures:
        ranks = len(theirs) // len(figures)
        where = f" ({figures[worst // ranks]} of rank {worst % ranks})"
    unit = "ns" if isinstance(item, AstraSimCase) else "ps"
    return _finding(item, f"here {ours[worst]} {unit}, should be {theirs[worst]} {unit}{where}", engine, errors[worst])


def _finding(item: Item, note: str, engine: str = "", rel_error: float | None = None) -> Finding:
    rel_error = 1.0 if note and rel_error is None else rel_error
    return Finding(item.place, item.set, item.label, item.judged, not note, rel_error, note, engine)


def _group(name: str, judged: bool, findings: Sequence[Finding]) -> FindingGroup:
    errors = [f.rel_error for f in findings if f.rel_error is not None]
    return FindingGroup(
        group=name,
        judged=judged,
        cases=len(findings),
        exact=sum(f.exact for f in findings),
        median_rel_error=median(errors) if errors else None,
        worst_rel_error=max(errors) if errors else None,
    )
