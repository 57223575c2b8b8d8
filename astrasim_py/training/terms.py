"""Parts of a training step: passes through layers, communication beside them, and the step itself."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import Any, NamedTuple

import numpy as np

from astrasim_py.training.prices import Transfer
from astrasim_py.training.schedules import SCHEDULES, SPLIT_BACKWARD
from astrasim_py.training.strategy import Numbers

#: Seconds: a float, or an array of one value per configuration.
Seconds = float | np.ndarray
#: Parts of a pipeline rank.
KINDS = ("dense", "moe", "embedding", "logits")


class Pass(NamedTuple):
    """One pass over a layer, in seconds: matrix products at scale 1, attention, memory traffic, the host at scale 1.

    `operations`: how many there are; `tp`, `ep`: all their communication; `ring`: one step of context parallelism.
    `launched`: of tensor parallel collectives, beside the host's launches. `lead`: tensor parallel communication before
    the first computation; `head`: that computation.
    """

    gemm: Seconds = 0.0
    attention: Seconds = 0.0
    moved: Seconds = 0.0
    operations: Numbers = 0
    host: Seconds = 0.0
    tp: Transfer = Transfer()
    ep: Transfer = Transfer()
    ring: Transfer = Transfer()
    lead: Transfer = Transfer()
    head: Seconds = 0.0
    launched: Seconds = 0.0


class Passes(NamedTuple):
    """Forward and backward pass (gradients and what is computed again), and the part for weight gradients of it."""

    forward: Pass = Pass()
    backward: Pass = Pass()
    weights: Pass = Pass()


class Counts(NamedTuple):
    """How many layers of each of `KINDS` a pipeline rank has."""

    dense: Seconds
    moe: Seconds
    embedding: Seconds
    logits: Seconds


class Exchange(NamedTuple):
    """Communication of the weights and gradients of a layer: gathers, and reductions."""

    gather: Transfer = Transfer()
    reduce: Transfer = Transfer()


#: No communication of gradients, by kind of layer.
NO_GRADIENTS: Mapping[str, Exchange] = dict.fromkeys(KINDS, Exchange())


class Gradients(NamedTuple):
    """Gathers of weights and reductions of gradients, by kind of layer: once an iteration, and of each pass."""

    once: Mapping[str, Exchange] = NO_GRADIENTS
    each: Mapping[str, Exchange] = NO_GRADIENTS


class Spent(NamedTuple):
    """Seconds of a pass: computation, waiting for the host, exposed TP, CP and EP communication; and its steps.

    `lead`, `lead_steps`: TP communication before the first computation; `head`: computation before all communication.
    """

    busy: Seconds = 0.0
    waiting: Seconds = 0.0
    tp: Seconds = 0.0
    cp: Seconds = 0.0
    ep: Seconds = 0.0
    tp_steps: Seconds = 0.0
    ep_steps: Seconds = 0.0
    lead: Seconds = 0.0
    lead_steps: Seconds = 0.0
    head: Seconds = 0.0

    @property
    def seconds(self) -> Seconds:
        """All of it."""
        return sum(self[:5])


class SpentByPass(NamedTuple):
    """Seconds of the passes of a layer; `weights` is the part of the backward pass for weight gradients."""

    forward: Spent
    backward: Spent
    weights: Spent


class BothPasses(NamedTuple):
    """Seconds of the forward and of the backward pass."""

    forward: Seconds
    backward: Seconds


@dataclass(frozen=True, kw_only=True)
class Terms:
    """Parts of a step time, before calibrated constants are applied; numbers, or arrays of one length.

    `counts`: of the first, the second and the last pipeline rank; `mean`: over ranks. `hidden`: whether computation
    hides the communication of gradients once an iteration, and with every microbatch; `beside`: the part of TP and EP
    communication that it hides where it is long enough. `waits`: whether the last stage reduces gradients of tied
    weights first, and waits with all others for the first stage, which has them last. This holds in traces, where these
    reductions are exposed.
    """

    microbatches: Numbers
    stages: Numbers
    chunks: Numbers
    context: Numbers
    schedule: Numbers
    hidden: tuple[bool | np.ndarray, bool | np.ndarray]
    beside: tuple[Seconds, Seconds]
    counts: tuple[Counts, Counts, Counts]
    mean: Counts
    dense: Passes
    moe: Passes
    embedding: Passes
    logits: Passes
    boundary: Transfer
    steady: Transfer
    gradients: Gradients
    optimizer: Seconds
    slower: Seconds
    wait: Seconds
    waits: bool | np.ndarray = False
    moving: Seconds = 0.0
    fixed: Seconds = 0.0

    @property
    def split(self) -> np.ndarray:
        """Whether weight gradients are computed in blocks of their own."""
        return np.isin(self.schedule, [SCHEDULES.index(name) for name in SPLIT_BACKWARD])


@dataclass(frozen=True, kw_only=True)
class StepTime:
    """An iteration of training, in seconds: the sum of all parts.

    `forward`, `backward` are computation of the heaviest stage; `host` is the time in which the GPU waits for the host
    and for the software of collectives; `tp`, `cp`, `ep`, `pp` and `dp` exposed communication by kind; `reduction` that
    of gradients at the end of the iteration; `memory` the time of moving data to expanded memory; `fixed` what an
    iteration takes besides.
    """

    forward: Seconds
    backward: Seconds
    host: Seconds
    tp: Seconds
    cp: Seconds
    ep: Seconds
    pp: Seconds
    dp: Seconds
    reduction: Seconds
    bubble: Seconds
    optimizer: Seconds
    memory: Seconds
    fixed: Seconds

    @property
    def seconds(self) -> Seconds:
        """The whole iteration."""
        return sum(getattr(self, field.name) for field in fields(self))


def stacked(rows: Sequence[Terms]) -> Terms:
    """Terms of single layouts, of any models and systems, as arrays."""
    parts = [[getattr(row, field.name) for row in rows] for field in fields(Terms)]
    return Terms(**{f.name: mapped(lambda *v: np.array(v), *p) for f, p in zip(fields(Terms), parts, strict=True)})


def taken(terms: Terms, rows: np.ndarray) -> Terms:
    """Some configurations of terms of which some are arrays."""
    return Terms(**{f.name: some(getattr(terms, f.name), rows) for f in fields(Terms)})


def some(tree: Any, rows: np.ndarray) -> Any:
    """Some configurations of a nesting of which some values are arrays."""
    return mapped(lambda value: value[rows] if np.ndim(value) else value, tree)


def on_rank(values: Mapping[str, Seconds], counts: Counts) -> Seconds:
    """Sum over the layers of a pipeline rank, and its part of embedding and logits."""
    return sum(count * values[kind] for kind, count in zip(KINDS, counts, strict=True))


def spent_on_rank(passes: Mapping[str, Spent], counts: Counts, names: Sequence[str]) -> Spent:
    """The named seconds of a pass over the layers of a pipeline rank."""
    return Spent(
        **{name: on_rank({kind: getattr(spent, name) for kind, spent in passes.items()}, counts) for name in names}
    )


def chosen(condition: np.ndarray, value: Seconds, other: Seconds) -> Seconds:
    """`np.where`, but for a number that both are."""
    return value if np.ndim(value) == np.ndim(other) == 0 and value == other else np.where(condition, value, other)


def mapped(function: Callable[..., Any], *trees: Any) -> Any:
    """`function` on the leaves of equal nestings of tuples and dicts."""
    tree = trees[0]
    if isinstance(tree, dict):
        return {key: mapped(function, *(branch[key] for branch in trees)) for key in tree}
    if isinstance(tree, tuple):
        parts = [mapped(function, *part) for part in zip(*trees, strict=True)]
        return type(tree)(*parts) if hasattr(tree, "_fields") else tuple(parts)
    return function(*trees)
