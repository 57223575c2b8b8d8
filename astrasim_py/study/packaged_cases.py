"""The set of `validate` that needs nothing but the package: closed forms, and figures of ASTRA-sim.

A closed form is the messages that follow each other, in rounds of equal messages that share no link; nothing is taken
from the simulator: neither sizes, nor routes, nor rates. The figures are data; the input files that they belong to are
written here, into a temporary folder.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from fractions import Fraction
from importlib.resources import files
from itertools import product
from pathlib import Path

import numpy as np
import yaml

from astrasim_py.chakra.et_io import write_prefix
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.core.choices import NETWORK_MODELS
from astrasim_py.core.errors import UsageError
from astrasim_py.core.records import Records
from astrasim_py.study.cases import Case
from astrasim_py.workload.items import Collective
from astrasim_py.workload.microbenchmarks import generate

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
        """Simulate it."""
        from astrasim_py.api import collective
        from astrasim_py.engine.simulation import simulate
        from astrasim_py.topology.shapes import SHAPES

        topology = SHAPES[self.shape](npus=self.npus, bandwidth=Fraction(10**12, BYTE), latency=LATENCY).build()
        problem = collective(self.collective, self.size, topology, algorithm=self.algorithm, model=self.model)
        return simulate(problem, engine=engine, level="summary")


def closed_forms() -> Iterator[ClosedForm]:
    """Every algorithm at every size, shape and model."""
    for algorithm, collective in ROUNDS:
        sizes = (0,) if collective == "barrier" else (4096, 2**24)
        shapes = [shape for shape in HOPS if algorithm != _AT_ONCE or shape == "fully_connected"]
        for npus, size, shape, model in product((2, 8), sizes, shapes, sorted(NETWORK_MODELS)):
            yield ClosedForm(algorithm=algorithm, collective=collective, npus=npus, size=size, shape=shape, model=model)


@contextmanager
def packaged_items(sets: Sequence[str] = ()) -> Iterator[list[Case | ClosedForm]]:
    """The packaged items; the files that they name exist while the context is open.

    `sets`: only these; all where empty. Raises UsageError: there is no such set.
    """
    found = json.loads(files("astrasim_py").joinpath("data/validation/astra_sim.json").read_text("utf-8"))
    names = dict.fromkeys([ClosedForm.set, *(one["set"] for one in found["cases"])])
    for name in sets:
        if name not in names:
            raise UsageError("--set", f'there is no packaged set "{name}"', f"write one of {', '.join(names)}")
    with tempfile.TemporaryDirectory(prefix="astrasim_py-validate-") as folder:
        items = [*closed_forms(), *_cases(Path(folder), found)]
        yield [item for item in items if not sets or item.set in sets]


def _cases(folder: Path, found: Mapping) -> Iterator[Case]:
    for name, network in found["networks"].items():
        (folder / f"{name}.yml").write_text(yaml.safe_dump(network), "utf-8")
    for name, system in found["systems"].items():
        (folder / f"{name}.json").write_text(json.dumps(system), "utf-8")
    memory = folder / "no_memory_expansion.json"
    memory.write_text(json.dumps({"memory-type": "NO_MEMORY_EXPANSION"}), "utf-8")
    for prefix, ring in found["injected"].items():
        (folder / prefix).parent.mkdir(parents=True, exist_ok=True)
        write_prefix(folder / prefix, ring_traces(ring["npus"], ring["message"], ring["reduce_micros"]))
    written: dict[tuple, tuple[Path, ...]] = {}
    for number, one in enumerate(found["cases"]):
        npus = int(np.prod(found["networks"][one["network"]]["npus_count"]))
        ((collective, size),) = one["workload"].items()
        key = (collective, size, npus)
        if key not in written:
            written[key] = _workload(folder, *key)
        times = one.get("times", [])
        flags = {key: Fraction(v) if key == "injection_scale" else v for key, v in one.get("flags", {}).items()}
        yield Case(
            place=f"packaged case {number}",
            set=one["set"],
            label=f"{one['network']} {one['backend']} {collective} {size} {one['system']}",
            backend=one["backend"],
            network=folder / f"{one['network']}.yml",
            system=folder / f"{one['system']}.json",
            memory=memory,
            workload=written[key],
            folder=folder,
            npus=npus,
            finishes=bool(times),
            times=_per_rank(times, npus),
            exposed=_per_rank(one.get("exposed", times), npus),
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
