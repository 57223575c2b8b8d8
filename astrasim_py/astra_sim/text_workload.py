"""Text workloads of ASTRA-sim 1.0: a kind of parallelism, and a line for each layer.

::

    HYBRID_TRANSFORMER model_parallel_NPU_group: 4
    2
    attention -1 1000 ALLREDUCE 65536 1000 ALLREDUCE 65536 1000 ALLREDUCE 131072 10
    mlp       -1 2000 ALLREDUCE 65536 2000 ALLREDUCE 65536 2000 ALLREDUCE 262144 10

A layer has a name, an unused number, compute time, collective and bytes of its forward pass, of its input gradient and
of its weight gradient, and the time of the update after a collective. The order of passes, and what waits
for what, is that of ASTRA-sim 1.0's workload layer for each kind.
"""

import argparse
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import prod

from astrasim_py.chakra.schema import NodeType
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import TraceError, UsageError
from astrasim_py.core.files import read_regular
from astrasim_py.core.units import parse_time
from astrasim_py.training.assembly import Block, assemble
from astrasim_py.workload.trace_readers import Conversion

_COLLECTIVES = {
    "NONE": (),
    "ALLREDUCE": ("all_reduce",),
    "ALLGATHER": ("all_gather",),
    "REDUCESCATTER": ("reduce_scatter",),
    "ALLTOALL": ("all_to_all",),
    "BROADCAST": ("broadcast",),
    "ALLREDUCEALLTOALL": ("all_reduce", "all_to_all"),
}
_TRANSFORMERS = ("HYBRID_TRANSFORMER", "HYBRID_TRANSFORMER_FWD_IN_BCKWD")
_DLRM = ("HYBRID_DLRM", "HYBRID_DLRM_ENHANCED")
#: Names of the first line whose numbers are layers; and those of its successors that change nothing here.
_LISTS = ("checkpoints", "checkpoint_initiates")
_OF_LAYERS = (*_LISTS, "DLRM_LAST_BOTTOM_LAYER")
_MODEL = "model_parallel_NPU_group"
_LATER = ("ep", "pp", "vpp", "ga", "all_gpus", "pp_comm")
#: Kinds that a layer of HYBRID_CUSTOMIZED may have.
_SIMPLE = ("DATA", "MODEL", "HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA", *_TRANSFORMERS)
#: Phases of a layer; the numbers of the column ``phase``.
PHASES = ("forward", "input_gradient", "weight_gradient")
KINDS = (*_SIMPLE, *_DLRM, "HYBRID_CUSTOMIZED", "MICRO", "DISTRIBUTED_INFERENCE")
_PHASE_NAMES = dict(zip(PHASES, ("forward passes", "input gradients", "weight gradients"), strict=True))
_MOST_BYTES, _MOST_LAYERS, _MOST_NODES = 64 << 20, 100_000, 20_000_000
_MOST_NUMBER = 2**62


@dataclass(frozen=True)
class Phase:
    """One of a layer's three passes: its compute time in cycles, its collectives, and their bytes."""

    cycles: int
    collectives: tuple[str, ...]
    size: int


@dataclass(frozen=True)
class Layer:
    """A line of the file."""

    name: str
    forward: Phase
    input_gradient: Phase
    weight_gradient: Phase
    update: int
    kind: str
    place: str


@dataclass(frozen=True)
class TextWorkload:
    """What a file says: `kind` of parallelism, layers, and the numbers of its first line by name."""

    kind: str
    layers: tuple[Layer, ...]
    numbers: dict[str, tuple[int, ...]]
    place: str


def read_text(path: str) -> TextWorkload:
    """Read a file; raises TraceError with the line of what is wrong."""
    data = read_regular(path, _MOST_BYTES, TraceError, what="a text workload", remedy="name a file of ASTRA-sim 1.0")
    try:
        lines = data.decode().splitlines()
    except UnicodeDecodeError:
        raise TraceError(path, "is not text", "name a file of ASTRA-sim 1.0") from None
    words = [(number, line.split()) for number, line in enumerate(lines, 1) if line.strip()]
    if len(words) < 2:
        raise TraceError(path, "has no layers", "write kind, number of layers, and a line for each layer")
    first, kind = f"{path}:{words[0][0]}", words[0][1][0]
    if kind not in KINDS:
        raise TraceError(first, f'"{kind}" is no kind of parallelism', f"write one of {', '.join(KINDS)}")
    numbers = _numbers(words[0][1][1:], first)
    given = _number(words[1][1][0], f"{path}:{words[1][0]}", "the number of layers")
    if given != len(words) - 2 or not 0 < given <= _MOST_LAYERS:
        raise TraceError(f"{path}:{words[1][0]}", f"says {given} layers, and {len(words) - 2} follow", "write them all")
    for name in _OF_LAYERS:
        for index in numbers.get(name, ()):
            if index >= given:
                raise TraceError(first, f"{name} names layer {index} of {given}", f"write 0 to {given - 1}")
    layers = tuple(_layer(own, f"{path}:{number}", kind) for number, own in words[2:])
    return TextWorkload(kind, layers, numbers, first)


def _number(text: str, place: str, what: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > _MOST_NUMBER:
        raise TraceError(place, f'"{text}" is not {what}', "write a whole number")
    return int(text)


def _numbers(words: Sequence[str], place: str) -> dict[str, tuple[int, ...]]:
    """``name: number …`` of the first line; lists begin with their length."""
    found: dict[str, tuple[int, ...]] = {}
    name = ""
    if len(words) == 1 and words[0].isdigit():
        return {"DLRM_LAST_BOTTOM_LAYER": (int(words[0]),)}  # as Chakra's converter has it
    for word in words:
        if word[0].isdigit() and name:
            found[name] += (_number(word, place, f"a value of {name}"),)
        else:
            name = word.rstrip(":")
            found[name] = ()
    for name, values in found.items():
        if name not in (_MODEL, *_OF_LAYERS, *_LATER):
            raise TraceError(place, f'"{name}" is no name of ASTRA-sim 1.0', f"write {_MODEL}, {', '.join(_OF_LAYERS)}")
        if len(values) != 1 and name not in _LISTS:
            raise TraceError(place, f"{name} has {len(values)} values", f"write e.g. {name}: 1")
        if name in ("ep", "pp") and values != (1,):
            raise TraceError(place, f"{name} is no part of ASTRA-sim 1.0", "use the verb train for such a model")
    for name in _LISTS:
        count, *items = found.get(name, (0,)) or (0,)
        if count != len(items):
            raise TraceError(place, f"{name} says {count}, and {len(items)} follow", "write the number, then that many")
        found[name] = tuple(items)
    return found


def _layer(words: Sequence[str], place: str, kind: str) -> Layer:
    own = kind == "HYBRID_CUSTOMIZED"
    if len(words) != 12 + own:
        raise TraceError(place, f"has {len(words)} words", f"write {12 + own}: see docs/traces.md")
    phases = []
    for at in (2, 5, 8):
        if words[at + 1] not in _COLLECTIVES:
            raise TraceError(place, f'"{words[at + 1]}" is no collective', f"write one of {', '.join(_COLLECTIVES)}")
        cycles = _number(words[at], place, "a compute time")
        phases.append(Phase(cycles, _COLLECTIVES[words[at + 1]], _number(words[at + 2], place, "a number of bytes")))
    if own and words[12] not in _SIMPLE:
        raise TraceError(place, f'"{words[12]}" is no kind of a layer', f"write one of {', '.join(_SIMPLE)}")
    return Layer(words[0], *phases, _number(words[11], place, "a time of an update"), words[12] if own else kind, place)


class _Groups:
    """Groups of model and data parallelism by dimensions of the network, and roles for them."""

    def __init__(self, dims: tuple[int, ...], text: TextWorkload, whole: bool) -> None:
        self.dims, self.text, self.whole, self.ranks = dims, text, whole, prod(dims)
        self.groups: dict[str, tuple[int, ...]] = {}
        self.roles: dict[str, list[str | None]] = {}

    def role(self, kind: str, index: int, weights: bool) -> tuple[str | None, int] | None:
        """Role and members of collectives of a layer, of weight gradients or the others; None: it has none.

        The role None is all ranks.
        """
        if self.ranks == 1:
            return None
        if self.whole or (kind in _DLRM and index == 0):
            return None, self.ranks
        if kind in ("DATA", "MICRO", *_DLRM):
            return (None, self.ranks) if weights else None
        if kind in ("MODEL", "DISTRIBUTED_INFERENCE"):
            return None if weights else (None, self.ranks)
        if kind in _TRANSFORMERS:
            inner = self._model_ranks()
        else:
            inner = self.dims[0]
        first = (kind != "HYBRID_MODEL_DATA") != weights  # whether it runs over the first dimension
        members = inner if first else self.ranks // inner
        if members == 1:
            return None
        name = f"{'inner' if first else 'outer'}{inner}"
        if name not in self.roles:
            own = [rank // inner if first else rank % inner for rank in range(self.ranks)]
            self.roles[name] = [f"{name}.{group}" for group in own]
            for rank, group in enumerate(own):
                self.groups[f"{name}.{group}"] = (*self.groups.get(f"{name}.{group}", ()), rank)
        return name, members

    def _model_ranks(self) -> int:
        found, remedy = self.text.numbers.get(_MODEL, (0,))[0], f"write e.g. {_MODEL}: 4"
        if not found:
            raise TraceError(self.text.place, f"gives no {_MODEL}", remedy)
        if self.ranks % found:
            raise TraceError(self.text.place, f"{_MODEL} {found} does not divide {self.ranks} NPUs", remedy)
        return found


class _Npu:
    """The nodes of an NPU, in the order of ASTRA-sim 1.0's workload layer."""

    def __init__(self, text: TextWorkload, groups: _Groups, cycle: int, updates: bool) -> None:
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
        own: Phase = getattr(layer, phase)
        role = self.groups.role(layer.kind, index, phase == "weight_gradient")
        if role is None or not own.collectives or not own.size:
            return []
        for kind in own.collectives:
            size = own.size * role[1] if kind == "all_gather" else own.size
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
            if self.text.kind in _TRANSFORMERS:
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
        found = [layer for layer in self.text.numbers["checkpoints"] if layer <= index]
        if not found:
            raise TraceError(self.text.place, f"layer {index} has no checkpoint before it", "add one to checkpoints:")
        return max(found)

    def inference(self) -> None:
        """Forward passes with collectives that block."""
        for index in range(len(self.text.layers)):
            self.blocking_forward(index)

    def micro(self) -> None:
        """The collectives of weight gradients, all at once."""
        for index in range(len(self.text.layers)):
            self.collect(index, "weight_gradient")


def text_workload(
    path: str, dims: Sequence[int], *, passes: int = 1, cycle: int = 1000, like_chakra: bool = False
) -> tuple[Workload, dict[str, int]]:
    """The workload of a text file of ASTRA-sim 1.0.

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
        Collectives of all NPUs whatever the kind says, and no updates, as in the traces that Chakra's converter writes.

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
    if len(text.layers) * passes * 10 > _MOST_NODES:
        raise TraceError(path, f"{passes} passes would be too many nodes", "write fewer passes")
    groups = _Groups(tuple(dims), text, like_chakra)
    npu = _Npu(text, groups, cycle, not like_chakra)
    kinds = {"DATA": npu.data, "MICRO": npu.micro, "DISTRIBUTED_INFERENCE": npu.inference}
    kinds |= dict.fromkeys(_DLRM, npu.recommendation)
    for number in range(passes):
        npu.suffix = f" pass {number}" if passes > 1 else ""
        kinds.get(text.kind, npu.model)()
    trace = assemble([(npu.block, (-1,))])
    roles = {name: own for name, own in groups.roles.items() if name in trace.group_of()[1]}
    used = {group for own in roles.values() for group in own}
    named = {name: ranks for name, ranks in groups.groups.items() if name in used}
    own = (
        (index, phase)
        for index, layer in enumerate(text.layers)
        for phase in PHASES
        if getattr(layer, phase).size and getattr(layer, phase).collectives
    )
    left_out = Counter(phase for index, phase in own if (index, phase) not in npu.made)
    return Workload((trace,) * groups.ranks, named, roles=roles), dict(left_out)


def arguments(parser: argparse.ArgumentParser) -> None:
    """Options of ``trace convert astra_sim_text``."""
    parser.add_argument("--input", required=True, metavar="FILE", help="text workload of ASTRA-sim 1.0")
    parser.add_argument("--dims", required=True, metavar="AxB", help="NPUs of each dimension, such as 8 or 8x4")
    parser.add_argument("--passes", type=int, default=1, metavar="N", help="iterations (1)")
    parser.add_argument("--cycle", metavar="TIME", help="unit of compute times (1ns; 1us with --like chakra)")
    parser.add_argument("--like", choices=("astra-sim", "chakra"), default="astra-sim", help="whose rules to follow")


def read(args: argparse.Namespace, say: Callable[[str], None]) -> Conversion:
    """Convert the file that the options name."""
    words = args.dims.split("x")
    if not all(word.isdigit() and 0 < int(word) < 2**24 for word in words) or prod(map(int, words)) > 2**20:
        raise UsageError("--dims", f'"{args.dims}" is not NPUs of each dimension', "write e.g. 8x4")
    if not 1 <= args.passes <= 10_000:
        raise UsageError("--passes", f"{args.passes} is out of range", "write 1..10000")
    chakra = args.like == "chakra"
    cycle = parse_time(args.cycle or ("1us" if chakra else "1ns"), "--cycle")
    if cycle < 1:
        raise UsageError("--cycle", "is not positive", "write e.g. 1ns")
    made, left_out = text_workload(
        args.input, [int(word) for word in words], passes=args.passes, cycle=cycle, like_chakra=chakra
    )
    kind = read_text(args.input).kind
    report = {"format": "astra_sim_text", "kind": kind, "npus": made.ranks, "nodes_per_npu": len(made.traces[0])}
    lines = [f"{kind}: {made.ranks} NPUs, {len(made.traces[0])} nodes each"]
    lines += [
        f"left out, as {kind} does not have them on {args.dims} NPUs: collectives of {_PHASE_NAMES[phase]}, {count}"
        for phase, count in sorted(left_out.items())
    ]
    return Conversion(made, report | {"left_out": left_out}, lines)
