"""Attacks on what is shared: who holds a library of workloads looks for the one most like it.

A *sample* is one workload of a *source* (a run, or one machine and batch size) that executes a named *workload* (a
model and its layout). The raw attacker compares with the library as it is, the adaptive one with the library passed
through the same level.
"""

import os
import re
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np

from astrasim_py.chakra.read_workload import read_workload
from astrasim_py.chakra.schema import CommType, NodeType
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import UsageError
from astrasim_py.core.files import named
from astrasim_py.core.notes import Notes
from astrasim_py.preparation.training import ModelMachine, model_workload
from astrasim_py.scenario.workload_models import TrainingWorkload
from astrasim_py.sharing.levels import Original
from astrasim_py.sharing.price import Rules, original_of, share
from astrasim_py.sharing.secrets import Scales
from astrasim_py.system.durations import recorded_ps
from astrasim_py.system.machine_models import NpuModel
from astrasim_py.topology.from_keys import build
from astrasim_py.topology.hardware import machine

_KINDS = (
    CommType.ALL_REDUCE, CommType.ALL_GATHER, CommType.REDUCE_SCATTER, CommType.ALL_TO_ALL, CommType.BROADCAST
)  # fmt: skip
#: Numbers of what features tell apart: collectives of each kind, others, sends, receives, memory, compute.
_CLASSES = len(_KINDS) + 5
_QUANTILES = np.linspace(0, 1, 9)


@dataclass(frozen=True, eq=False)
class Sample:
    """One workload of a corpus, of which an attacker sees all ranks, or one."""

    workload: str
    source: str
    original: Original
    rank: int | None = None


@dataclass(frozen=True)
class Attack:
    """How often the nearest sample tells something, as fractions of all samples.

    `workload_…`: it is of the same workload, among samples of other sources; `source_…`: it is of the same source.
    `…_raw`, `…_adaptive`: by attacker; `…_ratios`: adaptive, by what secret scales do not change; `…_chance`: of a
    sample drawn blindly.
    """

    samples: int
    workloads: int
    workload_raw: float
    workload_adaptive: float
    workload_ratios: float
    workload_chance: float
    source_raw: float
    source_adaptive: float
    source_ratios: float
    source_chance: float


def attack(samples: Sequence[Sample], level: str, *, seed: int = 0, secret: bool = False) -> Attack:
    """Put every sample through a level, and look for it in the library of all."""
    given, passed = (_passed(samples, level, seed + far, secret) for far in (0, len(samples)))

    def seen(workloads: Iterable[Workload], ratios: bool = False) -> np.ndarray:
        ranks = (sample.rank for sample in samples)
        return np.array([features(each, rank, ratios) for each, rank in zip(workloads, ranks, strict=True)])

    mine = seen(given)
    distances = {
        "raw": _distances(mine, seen(sample.original.workload for sample in samples)),
        "adaptive": _distances(mine, seen(passed)),
        "ratios": _distances(seen(given, ratios=True), seen(passed, ratios=True)),
    }
    workload, source = (np.array([getattr(each, what) for each in samples]) for what in ("workload", "source"))
    known = source[:, None] == source
    same = (workload[:, None] == workload) & ~known
    able = same.any(axis=1)  # those that a library without their source can tell

    def mean(hits: np.ndarray) -> float:
        return float(hits.mean()) if len(hits) else float("nan")

    every = np.arange(len(samples))
    rates = {
        "source_chance": mean(known),
        "workload_chance": mean((same.sum(axis=1) / np.maximum((~known).sum(axis=1), 1))[able]),
    }
    for who, distance in distances.items():
        rates[f"source_{who}"] = mean(known[every, distance.argmin(axis=1)])
        rates[f"workload_{who}"] = mean(same[every, np.where(known, np.inf, distance).argmin(axis=1)][able])
    return Attack(samples=len(samples), workloads=len(set(workload.tolist())), **rates)


def _passed(samples: Sequence[Sample], level: str, seed: int, secret: bool) -> list[Workload]:
    """What a level leaves of every sample; ranks of one set are of one that is given away."""
    made: dict[Original, Workload] = {}
    for number, sample in enumerate(samples, seed):
        if sample.original not in made:
            scales = Scales.draw(np.random.default_rng([number, 1])) if secret else Scales()
            made[sample.original] = share(sample.original, level, seed=number, scales=scales)
    return [made[sample.original] for sample in samples]


def _distances(given: np.ndarray, known: np.ndarray) -> np.ndarray:
    """float64[n, m]: distances of features, each in standard deviations of the library."""
    spread = known.std(axis=0)
    use = spread > 1e-9
    apart = (given[:, None, use] - known[None, :, use]) / spread[use]
    return np.sqrt((np.clip(apart, -10, 10) ** 2).sum(axis=2))


def features(workload: Workload, rank: int | None = None, ratios: bool = False) -> np.ndarray:
    """float64: what a workload looks like, without its names: means over ranks, or those of one rank.

    Numbers and sizes of calls of each kind, which follows which, quantiles of the times of compute and of sizes, the
    graph, groups. `ratios`: times and sizes as parts of all of a rank.
    """
    traces = workload.traces if rank is None else (workload.traces[rank],)
    made = {trace: _features(trace, ratios) for trace in dict.fromkeys(traces)}
    groups = [len(ranks) for ranks in workload.groups.values()] or [workload.ranks]
    shape = [np.log(workload.ranks), np.log1p(len(groups)), np.log(np.mean(groups)), np.log(np.max(groups))]
    return np.append(np.mean([made[trace] for trace in traces], axis=0), shape)


def _features(trace: ExecutionTrace, ratios: bool) -> np.ndarray:
    order = trace.order()
    kind = _classes(trace)[order]
    comm = kind < _CLASSES - 1
    took = recorded_ps(trace, Rules().semantics)[order]
    took = np.where(trace.column("num_ops")[order] > 0, np.maximum(took, trace.column("num_ops")[order]), took)
    size = np.maximum(np.maximum(trace.column("comm_size"), trace.column("tensor_size"))[order], 0)
    total, moved = took[~comm].sum(), size[comm].sum()
    if ratios:  # as if every rank computed for a second, and moved a gigabyte
        took, size = took * (1e12 / max(total, 1)), size * (1e9 / max(moved, 1))
        total = moved = 0
    columns = []
    for each in range(_CLASSES - 1):
        sizes = np.log1p(size[kind == each])
        columns += [np.log1p(len(sizes)), *(f(sizes) if len(sizes) else 0 for f in (np.mean, np.std))]
    calls = np.minimum(kind[comm], len(_KINDS))
    follows = np.bincount(calls[:-1] * (len(_KINDS) + 1) + calls[1:], minlength=(len(_KINDS) + 1) ** 2)
    columns += (follows / max(len(calls) - 1, 1)).tolist()
    for values in (took[(kind == _CLASSES - 1) & (took > 0)], size[comm & (size > 0)]):
        columns += np.log(np.quantile(values, _QUANTILES)).tolist() if len(values) else [0] * len(_QUANTILES)
    degree = np.diff(trace.data_deps.ptr)
    columns += [np.log1p(total), np.log1p(moved), np.log1p(total) - np.log1p(moved), np.log1p(len(trace))]
    columns += [comm.mean(), degree.mean(), np.log1p(degree.max(initial=0)), (degree == 0).mean()]
    return np.array(columns, dtype=np.float64)


def _classes(trace: ExecutionTrace) -> np.ndarray:
    """int64[n]: the number of each node's class."""
    made = np.full(len(trace), _CLASSES - 1)
    collective = trace.type == NodeType.COMM_COLL
    made[collective] = len(_KINDS)
    for number, code in enumerate(_KINDS):
        made[collective & (trace.column("comm_type") == code)] = number
    for number, codes in enumerate(
        ((NodeType.COMM_SEND,), (NodeType.COMM_RECV,), (NodeType.MEM_LOAD, NodeType.MEM_STORE)), len(_KINDS) + 1
    ):
        made[np.isin(trace.type, codes)] = number
    return made


# -- corpora -----------------------------------------------------------------------------------------------------------


def read_corpus(folder: str, rules: Rules | None = None) -> list[Sample]:
    """The samples of a folder: ``WORKLOAD/SOURCE.<rank>.et``, or ``WORKLOAD/SOURCE@SAMPLE.<rank>.et`` where a source
    has several; groups in ``….groups.json``.

    Raises UsageError: fewer than two samples. Raises TraceError: as `read_workload`.
    """
    samples = []
    named(folder, UsageError)
    for first in sorted([*Path(folder).glob("*/*.0.et"), *Path(folder).glob("*/*.0.et.gz")]):
        prefix = first.with_name(first.name.partition(".0.et")[0])
        groups = prefix.with_name(f"{prefix.name}.groups.json")
        workload = read_workload(prefix, groups=groups if os.path.exists(groups) else None, notes=Notes())
        source = f"{first.parent.name}/{prefix.name.partition('@')[0]}"
        samples.append(Sample(first.parent.name, source, original_of(workload, rules)))
    if len(samples) < 2:
        problem = f"holds {len(samples)} workloads, and an attack needs a library"
        raise UsageError(folder, problem, "name a folder of WORKLOAD/SOURCE.<rank>.et")
    return samples


#: Models of the generated corpus, cut to few layers, and their layouts on 8 ranks: 21 workloads.
_MODELS = {
    "llama3-8b": ({}, {"tp": 2}, {"zero": 3}, {"tp": 2, "pp": 2}, {"pp": 4}),
    "gpt3-5b": ({}, {"tp": 4}, {"tp": 2, "pp": 2}),
    "mpt-1b": ({}, {"zero": 3}, {"pp": 2}),
    "gemma3-27b": ({"tp": 4}, {"zero": 3}, {"pp": 4}),
    "mixtral-8x7b": ({"ep": 8}, {"ep": 4, "pp": 2}, {"ep": 4, "tp": 2}),
    "megatron-22b": ({"tp": 8}, {"tp": 2, "cp": 2}),
    "qwen3-30b-a3b": ({"ep": 8}, {"ep": 2, "pp": 4}),
}
#: Its sources: the machine, and sequences of an iteration. In each, kernels have speeds of their own.
_SOURCES = (("dgx_h100", 16), ("dgx_h100", 16), ("dgx_a100", 32))
_RANKS, _LAYERS = 8, 4
#: Deviation of the logarithm of the duration of a kernel from source to source, and from iteration to iteration.
_SOFTWARE, _JITTER = 0.15, 0.05


def packaged_corpus(*, sources: int = 2, iterations: int = 1, more: int = 0) -> list[Sample]:
    """Samples of generated trainings: `sources` of each workload, `iterations` of each source, whose durations differ
    as those of kernels do; `more` workloads have a third source, with one iteration.
    """
    names = [(model, keys) for model, layouts in _MODELS.items() for keys in layouts]
    samples = []
    for number, (model, keys) in enumerate(names):
        workload = " ".join([model, *(f"{key}{value}" for key, value in keys.items())])
        for which, (name, gbs) in enumerate(_SOURCES[: sources + (number < more)]):
            made = _generated(model, keys, name, gbs)
            for each in range(iterations if which < sources else 1):
                seeds = [number, which], [number, which, each]
                noisy = {trace: _noisy(trace, *seeds) for trace in dict.fromkeys(made.traces)}
                again = replace(made, traces=tuple(map(noisy.__getitem__, made.traces)))
                samples.append(Sample(workload, f"{workload} {which}", original_of(again)))
    return samples


def _generated(model: str, keys: dict, name: str, gbs: int) -> Workload:
    training = {"model": {"base": model, "layers": _LAYERS}, "seq": 2048, "gbs": gbs, **keys}
    spec = TrainingWorkload.model_validate({"training": training, "memory": "ignore"})
    topology = build(machine(name, _RANKS), name, written=True)
    compute = NpuModel.model_validate({"preset": name})
    return model_workload(spec, ModelMachine(topology=topology, compute=compute, ranks=_RANKS, place=name), model)


def _noisy(trace: ExecutionTrace, source: Sequence[int], iteration: Sequence[int]) -> ExecutionTrace:
    took = trace.column("duration_ps")
    kernels = [re.sub(r"\d+", "", name) for name in trace.names]
    speeds = {
        each: np.random.default_rng([*source, *each.encode()]).lognormal(0, _SOFTWARE)
        for each in dict.fromkeys(kernels)
    }
    by = np.random.default_rng(iteration).lognormal(0, _JITTER, len(took)) * [speeds[each] for each in kernels]
    drawn = np.rint(took * by, where=took > 0, out=np.zeros(len(took)))
    return trace.replace(duration_ps=np.where(took > 0, drawn.astype(np.int64), took))
