"""Text workloads of ASTRA-sim 1.0 and SimAI as traces: a kind of parallelism, and a line for each layer.

::

    HYBRID_TRANSFORMER model_parallel_NPU_group: 4
    2
    attention -1 1000 ALLREDUCE 65536 1000 ALLREDUCE 65536 1000 ALLREDUCE 131072 10
    mlp       -1 2000 ALLREDUCE 65536 2000 ALLREDUCE 65536 2000 ALLREDUCE 262144 10

A layer has a name, an unused number, compute time, collective and bytes of its forward pass, of its input gradient and
of its weight gradient, and the time of the update after a collective. The order of passes, and what waits
for what, is that of ASTRA-sim 1.0's workload layer for each kind.
"""

from collections import Counter
from collections.abc import Sequence
from math import prod

from astrasim_py.astra_sim.text_file import DLRM, MODEL, PHASES, TRANSFORMERS, Phase, TextWorkload, read_text
from astrasim_py.chakra.schema import NodeType
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import TraceError
from astrasim_py.core.notes import Notes
from astrasim_py.core.units import number_of
from astrasim_py.training.assembly import Block, assemble

PHASE_NAMES = dict(zip(PHASES, ("forward passes", "input gradients", "weight gradients"), strict=True))
_MOST_NODES = 20_000_000


class _TextGroups:
    """Groups of model and data parallelism by dimensions of the network, and roles for them."""

    def __init__(self, dims: tuple[int, ...], text: TextWorkload, whole: bool) -> None:
        self.dims, self.text, self.whole, self.ranks = dims, text, whole, prod(dims)
        self.groups: dict[str, tuple[int, ...]] = {}
        self.roles: dict[str, list[str | None]] = {}

    def role(self, kind: str, index: int, weights: bool, end: str = "") -> tuple[str | None, int] | None:
        """Role and members of collectives of a layer, of weight gradients or the others; None: it has none.

        The role None is all ranks. `end`: of the name of the collective.
        """
        if self.ranks == 1:
            return None
        if end and not self.whole:
            return self._of_experts(end)
        if self.whole or (kind in DLRM and index == 0):
            return None, self.ranks
        if kind in ("DATA", "MICRO", *DLRM):
            return (None, self.ranks) if weights else None
        if kind in ("MODEL", "DISTRIBUTED_INFERENCE"):
            return None if weights else (None, self.ranks)
        if kind in TRANSFORMERS:
            inner = self._model_ranks()
        else:
            inner = self.dims[0]
        first = (kind != "HYBRID_MODEL_DATA") != weights  # whether it runs over the first dimension
        members = inner if first else self.ranks // inner
        group_of = [rank // inner if first else rank % inner for rank in range(self.ranks)]
        return self._made(f"{'inner' if first else 'outer'}{inner}", group_of, members)

    def _of_experts(self, end: str) -> tuple[str, int] | None:
        """Of SimAI: ranks of one place in their model-parallel groups, `ep` neighbours of them, or each `ep`-th."""
        inner, experts = self._model_ranks(), self.text.number("ep", 1)
        copies = self.ranks // inner
        if copies % experts:
            problem = f"ep {experts} does not divide {copies} groups of {MODEL}"
            raise TraceError(self.text.place, problem, f"write a divisor of {copies}")
        group_of = [
            rank % inner + inner * (rank // inner // experts if end == "EP" else rank // inner % experts)
            for rank in range(self.ranks)
        ]
        return self._made(f"{end.lower()}{experts}", group_of, experts if end == "EP" else copies // experts)

    def _made(self, name: str, group_of: list[int], members: int) -> tuple[str, int] | None:
        """A role in which each rank has the group of its number; None: alone."""
        if members == 1:
            return None
        if name not in self.roles:
            self.roles[name] = [f"{name}.{group}" for group in group_of]
            for rank, group in enumerate(group_of):
                self.groups[f"{name}.{group}"] = (*self.groups.get(f"{name}.{group}", ()), rank)
        return name, members

    def _model_ranks(self) -> int:
        ranks, remedy = self.text.number(MODEL), f"write e.g. {MODEL}: 4"
        if not ranks:
            raise TraceError(self.text.place, f"gives no {MODEL}", remedy)
        if self.ranks % ranks:
            raise TraceError(self.text.place, f"{MODEL} {ranks} does not divide {self.ranks} NPUs", remedy)
        return ranks


class _Npu:
    """The nodes of an NPU, in the order of ASTRA-sim 1.0's workload layer."""

    def __init__(self, text: TextWorkload, groups: _TextGroups, cycle: int, updates: bool) -> None:
        self.text, self.groups, self.cycle, self.updates = text, groups, cycle, updates
        self.block = Block()
        self.before: list[int] = []  # dependencies of the next node of the NPU
        self.weights: dict[int, list[int]] = {}  # ends of the collectives of weight gradients, by layer
        self.made: set[tuple[int, str]] = set()  # layers and phases with a collective
        self.suffix = ""

    def compute(self, index: int, phase: str) -> None:
        """A computation; all of them run one after the other."""
        layer = self.text.layers[index]
        time = getattr(layer, phase).cycles * self.cycle
        if time:
            code = PHASES.index(phase)
            name = f"{layer.name}.{phase}{self.suffix}"
            after = list(dict.fromkeys(self.before))
            self.before = [self.block.add(NodeType.COMP, name, after=after, duration_ps=time, layer=index, phase=code)]

    def collect(self, index: int, phase: str) -> list[int]:
        """The collectives of a layer's phase after what came before; returns what waits for them has to wait for."""
        layer, rows = self.text.layers[index], list(dict.fromkeys(self.before))
        calls: Phase = getattr(layer, phase)
        role = self.groups.role(layer.kind, index, phase == "weight_gradient", calls.group)
        if role is None or not calls.collectives or not calls.size:
            return []
        for kind in calls.collectives:
            shard = kind == "all_gather" and not (self.text.simai and not self.groups.whole)
            size = calls.size * role[1] if shard else calls.size
            name = f"{layer.name}.{phase}.{kind}{self.suffix}"
            rows = [self.block.collective(name, kind, size, role[0], role[1], after=rows, layer=index)]
        if self.updates and layer.update:
            time, name = layer.update * self.cycle, f"{layer.name}.{phase}.update{self.suffix}"
            rows = [self.block.add(NodeType.COMP, name, after=rows, duration_ps=time, layer=index, slot_kind=0)]
        self.made.add((index, phase))
        return rows

    def forward(self, index: int) -> None:
        """A forward pass, which waits for the layer's weights."""
        self.before += self.weights.pop(index, [])
        self.compute(index, "forward")

    def weight_gradient(self, index: int) -> None:
        """A weight gradient, whose collective runs beside the next nodes."""
        self.compute(index, "weight_gradient")
        self.weights[index] = self.collect(index, "weight_gradient")

    def data(self) -> None:
        """Forward; then by layer weight gradient and input gradient."""
        for index in range(len(self.text.layers)):
            self.forward(index)
        for index in reversed(range(len(self.text.layers))):
            self.weight_gradient(index)
            if index:
                self.compute(index, "input_gradient")

    def recommendation(self) -> None:
        """As `data`; the first layer's all-to-alls run beside the bottom layers."""
        bottom = self.text.numbers.get("DLRM_LAST_BOTTOM_LAYER", (0,))[0]
        lookup: list[int] = []
        gradient: list[int] = []
        for index, layer in enumerate(self.text.layers):
            self.forward(index)
            if layer.forward.collectives == ("all_to_all",):
                done = self.collect(index, "forward")
                lookup = lookup if index else done
            if index == bottom:
                self.before += lookup
        for index in reversed(range(len(self.text.layers))):
            self.weight_gradient(index)
            if index == 0 and self.text.kind == "HYBRID_DLRM":
                self.before += gradient
            if index:
                self.compute(index, "input_gradient")
            if index == bottom + 1:
                gradient = self.collect(0, "input_gradient")

    def model(self) -> None:
        """Forward with collectives that block; then by layer input gradient, its collective, and weight gradient.

        The collective of an input gradient blocks in the kinds for transformers, and else runs beside the weight
        gradient.
        """
        for index in range(len(self.text.layers)):
            self.blocking_forward(index)
        for index in reversed(range(len(self.text.layers))):
            if index in self.text.numbers["checkpoint_initiates"]:
                for again in range(self._checkpoint(index), index):
                    self.blocking_forward(again)
            self.compute(index, "input_gradient")
            if self.text.kind in TRANSFORMERS:
                self.before = self.collect(index, "input_gradient") or self.before
                self.weight_gradient(index)
            else:
                done = self.collect(index, "input_gradient") if index else []
                self.weight_gradient(index)
                self.before += done

    def blocking_forward(self, index: int) -> None:
        """A forward pass and its collective."""
        self.forward(index)
        self.before = self.collect(index, "forward") or self.before

    def _checkpoint(self, index: int) -> int:
        before = [layer for layer in self.text.numbers["checkpoints"] if layer <= index]
        if not before:
            raise TraceError(self.text.place, f"layer {index} has no checkpoint before it", "add one to checkpoints:")
        return max(before)

    def inference(self) -> None:
        """Forward passes with collectives that block."""
        for index in range(len(self.text.layers)):
            self.blocking_forward(index)

    def micro(self) -> None:
        """The collectives of weight gradients, all at once."""
        for index in range(len(self.text.layers)):
            self.collect(index, "weight_gradient")


def text_workload(
    path: str,
    dims: Sequence[int],
    *,
    passes: int = 1,
    cycle: int = 1000,
    like_chakra: bool = False,
    notes: Notes | None = None,
) -> tuple[Workload, dict[str, int]]:
    """The workload of a text file of ASTRA-sim 1.0 or SimAI.

    What the file says and the workload does not use is told by Python warnings, or put into `notes`.

    Parameters
    ----------
    path : str
    dims : sequence of int
        NPUs of each dimension of the network; rank 1 is beside rank 0 in the first.
    passes : int
        Iterations.
    cycle : int
        Length of a cycle, the unit of compute times, ps.
    like_chakra : bool
        Collectives of all NPUs whatever the kind says, no updates, and bytes of an all_gather as those of one shard, as
        in the traces that Chakra's converter writes.
    notes : Notes, optional
        Takes the lines that are else warnings.

    Returns
    -------
    Workload
        One trace for all NPUs.
    dict
        By phase how many collectives were left out because the kind of parallelism has no such collectives.

    Raises
    ------
    TraceError
        The file is not of the format; its groups do not divide the NPUs.
    """
    text = read_text(path)
    lines = Notes(hints=[f"{path}: not used: {line}" for line in text.unused()])
    if (gpus := text.number("all_gpus")) not in (0, prod(dims)):
        lines.warnings.append(f"{text.place}: all_gpus is {gpus}, and the dimensions have {prod(dims)} NPUs")
    if len(text.layers) * passes * 10 > _MOST_NODES:
        raise TraceError(path, f"{passes} passes would be too many nodes", "write fewer passes")
    groups = _TextGroups(tuple(dims), text, like_chakra)
    npu = _Npu(text, groups, cycle, not like_chakra)
    kinds = {"DATA": npu.data, "MICRO": npu.micro, "DISTRIBUTED_INFERENCE": npu.inference}
    kinds |= dict.fromkeys(DLRM, npu.recommendation)
    for number in range(passes):
        npu.suffix = f" pass {number}" if passes > 1 else ""
        kinds.get(text.kind, npu.model)()
    trace = assemble([(npu.block, (-1,))])
    roles = {name: groups_of for name, groups_of in groups.roles.items() if name in trace.group_of()[1]}
    used = {group for groups_of in roles.values() for group in groups_of}
    members_of = {name: ranks for name, ranks in groups.groups.items() if name in used}
    layer_phases = (
        (index, phase)
        for index, layer in enumerate(text.layers)
        for phase in PHASES
        if getattr(layer, phase).size and getattr(layer, phase).collectives
    )
    left_out = Counter(phase for index, phase in layer_phases if (index, phase) not in npu.made)
    with_update = {index for index, layer in enumerate(text.layers) if layer.update}
    if idle := with_update - (set() if like_chakra else {index for index, _ in npu.made}):
        lines.hints.append(f"{path}: not used: the update time of {number_of(len(idle), 'layer')} without a collective")
    if text.simai and like_chakra and any("all_gather" in p.collectives for layer in text.layers for p in layer.phases):
        lines.hints.append(
            f"{path}: bytes of an ALLGATHER, the whole buffer to SimAI, are one shard to Chakra's converter"
        )
    if notes is None:
        lines.warn()
    else:
        notes.add(lines)
    return Workload((trace,) * groups.ranks, members_of, roles=roles), dict(left_out)
