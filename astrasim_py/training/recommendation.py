"""Training of a recommendation model (DLRM): tables of embeddings over all ranks, the rest on every rank.

Each rank holds a part of the tables and looks up the rows of all ranks' samples; an all-to-all brings them to the rank
of each sample. Three streams overlap: computation, memory traffic of the tables, and communication.
Source: Naumov et al., Deep Learning Recommendation Model (2019).
"""

from dataclasses import replace
from itertools import pairwise
from typing import Annotated, Any

from pydantic import Field

from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.fields import Count, choice, whole
from astrasim_py.core.strict_model import StrictModel, example
from astrasim_py.training.assembly import COMPUTE, NO_SLOT, Block, assemble
from astrasim_py.training.layer_writer import PHASES, SUFFIX
from astrasim_py.training.layers import Comm, Op, up
from astrasim_py.training.memory import STATE_BYTES, with_framework
from astrasim_py.training.models import NamedRecommendationModel, RecommendationModel
from astrasim_py.training.prices import Prices

#: Streams of a rank beside computation.
MEMORY, NETWORK = "memory", "network"


class Recommendation(StrictModel):
    """The keys under ``recommendation:``: training of a DLRM on all ranks of a job."""

    _place = "recommendation"

    model: NamedRecommendationModel = example("dlrm-mlperf")
    gbs: Count = Field(examples=["65536"], description="samples of an iteration, on all ranks together")
    iterations: Count = 1
    dtype: Annotated[str, choice("bf16", "fp16")] = Field(default="bf16", description="of tables and activations")
    grad_dtype: Annotated[str, choice("bf16", "fp32")] = Field(
        default="fp32", description="of gradients when they are reduced"
    )
    update: Annotated[int, whole(1, 100)] = Field(
        default=3, description="bytes that an update of the tables moves, as a multiple of those of the lookup"
    )

    def batch(self, ranks: int) -> int:
        """Samples of each rank; raises ScenarioError: ranks do not divide them."""
        if self.gbs % ranks:
            near = max(round(self.gbs / ranks), 1) * ranks
            raise ScenarioError("recommendation", f"{ranks} ranks do not divide gbs {self.gbs}", f"write gbs: {near}")
        return self.gbs // ranks

    @property
    def sizes(self) -> dict[str, int]:
        """Bytes of elements, and of updates as a multiple, as `operations` takes them."""
        return {"element": 2, "gradient": 4 if self.grad_dtype == "fp32" else 2, "update": self.update}


def recommendation_memory(
    model: RecommendationModel, ranks: int, batch: int, *, element: int = 2, gradient: int = 4, **_: int
) -> dict[str, int]:
    """Bytes of a rank that has `batch` samples, by kind.

    Tables are spread evenly over ranks; their optimizer keeps a number of 4 bytes for each row (row-wise AdaGrad).
    """
    rows, dense = up(model.rows, ranks), sum(model.mlp_params)
    dense += 2 * model.cross_layers * model.cross_rank * (model.tables + 1) * model.width
    widths = 2 * (model.tables + 1) * model.width + sum(model.bottom) + sum(model.top)
    kept = {"tables": rows * model.width * element, "weights": dense * element, "gradients": dense * gradient}
    state = {"optimizer": rows * 4 + dense * STATE_BYTES, "activations": batch * element * widths}
    return {kind: int(nbytes) for kind, nbytes in with_framework(kept | state).items()}


def operations(
    model: RecommendationModel, batch: int, *, element: int = 2, gradient: int = 4, update: int = 3
) -> dict[str, tuple[Op, ...] | Comm]:
    """Operations of one rank in an iteration, by name.

    `batch`: samples of each rank. `element`, `gradient`: bytes of an element of tables and activations, and of
    gradients when they are reduced. `update`: bytes that an update of the tables moves, as a multiple of those of the
    lookup.
    """
    rows = batch * model.tables * model.width * element
    lookup = Op(name="lookup", block="embedding", kind="elementwise", nbytes=rows * model.pooling)
    features = (model.tables + 1) * model.width
    mix = Op(
        name="interaction",
        block="top",
        kind="gemm",
        m=batch,
        n=model.tables + 1,
        k=features,
        flops=batch * (model.tables + 1) * features,
        nbytes=element * (batch * features + batch * (model.tables + 1) ** 2),
    )
    cross = [
        _product(f"cross{layer}.{side}", "top", batch, n, k, element)
        for layer in range(model.cross_layers)
        for side, n, k in (("down", model.cross_rank, features), ("up", features, model.cross_rank))
    ]
    bottom = tuple(
        _product(f"fc{i}", "bottom", batch, n, k, element) for i, (k, n) in enumerate(pairwise(model.bottom))
    )
    top = tuple(_product(f"fc{i}", "top", batch, n, k, element) for i, (k, n) in enumerate(pairwise(model.top)))
    top = (*(cross or (mix,)), *top)
    below, above = model.mlp_params
    above += 2 * model.cross_layers * model.cross_rank * features
    exchange = Comm(name="rows", block="embedding", collective="all_to_all", group="", size=rows)
    reduce = Comm(name="gradients", block="top", collective="all_reduce", group="", size=above * gradient, part="W")
    optimizer = Op(name="optimizer", block="optimizer", kind="elementwise", part="O", nbytes=30 * (below + above))
    return {
        "lookup": (lookup,),
        "bottom": bottom,
        "rows": exchange,
        "top": top,
        "top_back": tuple(_twice(op) for op in reversed(top)),
        "top_gradients": reduce,
        "rows_back": replace(exchange, part="I"),
        "update": (replace(lookup, name="update", part="O", nbytes=update * lookup.nbytes),),
        "bottom_back": tuple(_twice(op) for op in reversed(bottom)),
        "bottom_gradients": replace(reduce, block="bottom", size=below * gradient),
        "optimizer": (optimizer,),
    }


#: Nodes of an iteration: dependencies of each besides the one before it in its stream, and its stream.
PROGRAM = {
    "lookup": ((), MEMORY),
    "bottom": ((), COMPUTE),
    "rows": (("lookup",), NETWORK),
    "top": (("rows",), COMPUTE),
    "top_back": ((), COMPUTE),
    "top_gradients": (("top_back",), NETWORK),
    "rows_back": (("top_back",), NETWORK),
    "update": (("rows_back",), MEMORY),
    "bottom_back": ((), COMPUTE),
    "bottom_gradients": (("bottom_back",), NETWORK),
    "optimizer": (("bottom_gradients",), COMPUTE),
}


def recommendation_workload(
    model: RecommendationModel,
    ranks: int,
    batch: int,
    prices: Prices | None = None,
    *,
    iterations: int = 1,
    name: str = "",
    **sizes: int,
) -> Workload:
    """Training iterations on ranks that all run one trace.

    `batch`: samples of each rank. `prices`: without them computation carries FLOPs and bytes alone. `sizes`: of
    `operations`.
    """
    block, rows = Block(), dict[str, int]()
    for key, does in operations(model, batch, **sizes).items():
        waits, stream = PROGRAM[key]
        others: dict[str, Any] = {"stream": stream, "after": [rows[wait] for wait in waits]}
        if isinstance(does, Comm):
            phase = PHASES[does.part]
            label = f"{does.block}.{does.name}.{SUFFIX[phase]}.{does.collective}"
            rows[key] = block.collective(label, does.collective, does.size, None, ranks, phase=phase, **others)
            continue
        if stream == MEMORY:
            others["slot_kind"] = NO_SLOT
        phase = PHASES[does[0].part]
        rows[key] = block.compute(
            f"{does[0].block}.{SUFFIX[phase]}",
            flops=sum(op.flops for op in does),
            nbytes=sum(op.nbytes for op in does),
            time_ps=None if prices is None else prices.op_ps(*does),
            phase=phase,
            **others,
        )
    trace = assemble([(block, (iteration,)) for iteration in range(iterations)])
    return Workload((trace,) * ranks, name=name)


def _product(name: str, block: str, m: int, n: int, k: int, element: int) -> Op:
    nbytes = element * (m * k + k * n + m * n)
    return Op(name=name, block=block, kind="gemm", flops=2 * m * n * k, nbytes=nbytes, m=m, n=n, k=k)


def _twice(op: Op) -> Op:
    """The backward pass of a product: gradients of inputs and of weights."""
    return replace(op, part="I", flops=2 * op.flops, nbytes=2 * op.nbytes)
