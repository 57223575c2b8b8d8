"""Files of text workloads of ASTRA-sim 1.0, and of SimAI, which writes the same layers under a longer first line.

SimAI names groups by an end of the collective (``ALLTOALL_EP``), and states the whole buffer of every collective, an
``ALLGATHER`` included (aliyun/SimAI#74).
"""

from collections.abc import Sequence
from dataclasses import dataclass

from astrasim_py.core.errors import TraceError
from astrasim_py.core.files import read_regular
from astrasim_py.core.units import number_of

_COLLECTIVES = {
    "NONE": (),
    "ALLREDUCE": ("all_reduce",),
    "ALLGATHER": ("all_gather",),
    "REDUCESCATTER": ("reduce_scatter",),
    "ALLTOALL": ("all_to_all",),
    "BROADCAST": ("broadcast",),
    "ALLREDUCEALLTOALL": ("all_reduce", "all_to_all"),
}
TRANSFORMERS = ("HYBRID_TRANSFORMER", "HYBRID_TRANSFORMER_FWD_IN_BCKWD")
DLRM = ("HYBRID_DLRM", "HYBRID_DLRM_ENHANCED")
#: Names of the first line whose numbers are layers; and those of SimAI.
_LISTS = ("checkpoints", "checkpoint_initiates")
_OF_LAYERS = (*_LISTS, "DLRM_LAST_BOTTOM_LAYER")
MODEL = "model_parallel_NPU_group"
_SIMAI = ("ep", "pp", "vpp", "ga", "all_gpus", "pp_comm")
_NAMES = (MODEL, *_OF_LAYERS, *_SIMAI)
#: Ends by which SimAI names a group: of experts, and of those that have the same experts.
_ENDS = ("_DP_EP", "_EP")
_WITH_END = ("ALLREDUCE", "ALLGATHER", "REDUCESCATTER", "ALLTOALL", "ALLREDUCEALLTOALL")
#: Kinds that a layer of HYBRID_CUSTOMIZED may have.
_SIMPLE = ("DATA", "MODEL", "HYBRID_DATA_MODEL", "HYBRID_MODEL_DATA", *TRANSFORMERS)
#: Phases of a layer; the numbers of the column ``phase``.
PHASES = ("forward", "input_gradient", "weight_gradient")
KINDS = (*_SIMPLE, *DLRM, "HYBRID_CUSTOMIZED", "MICRO", "DISTRIBUTED_INFERENCE")
_MOST_BYTES, _MOST_LAYERS = 64 << 20, 100_000
_MOST_NUMBER = 2**62


@dataclass(frozen=True)
class Phase:
    """One of a layer's three passes: its compute time in cycles, its collectives, their bytes, and the end of their
    name that says their group, without its bar: ``EP``, ``DP_EP`` or nothing.
    """

    cycles: int
    collectives: tuple[str, ...]
    size: int
    group: str = ""


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
    unused: str = "-1"  # the second word

    @property
    def phases(self) -> tuple[Phase, Phase, Phase]:
        """The three passes, as in `PHASES`."""
        return self.forward, self.input_gradient, self.weight_gradient


@dataclass(frozen=True)
class TextWorkload:
    """What a file says: `kind` of parallelism, layers, the numbers of its first line by name, and its comments."""

    kind: str
    layers: tuple[Layer, ...]
    numbers: dict[str, tuple[int, ...]]
    place: str
    comments: int = 0

    @property
    def simai(self) -> bool:
        """Whether SimAI wrote it: then an all_gather's bytes are the whole buffer, else one shard."""
        return any(name in self.numbers for name in _SIMAI)

    def number(self, name: str, default: int = 0) -> int:
        """A number of the first line."""
        return self.numbers.get(name, (default,))[0]

    def unused(self) -> list[str]:
        """What the file says and a workload does not use, one line each."""
        phases = [phase for layer in self.layers for phase in layer.phases]
        counts = {
            "comments, {}": (self.comments, "line"),
            "the second word of {}": (sum(layer.unused != "-1" for layer in self.layers), "layer"),
            "bytes without a collective, {}": (sum(bool(p.size and not p.collectives) for p in phases), "time"),
            "collectives of 0 bytes, {}": (sum(bool(p.collectives and not p.size) for p in phases), "time"),
        }
        lines = [text.format(number_of(*count)) for text, count in counts.items() if count[0]]
        used = {"all_gpus", *(("ep", "pp", MODEL) if self.kind in (*TRANSFORMERS, "HYBRID_CUSTOMIZED") else ()),
                *(_LISTS if self.kind == "HYBRID_TRANSFORMER_FWD_IN_BCKWD" else ()),
                *(("DLRM_LAST_BOTTOM_LAYER",) if self.kind in DLRM else ())}  # fmt: skip
        names = [name for name, values in self.numbers.items() if values and name not in used]
        return lines + ([f"{', '.join(names)} of the first line"] if names else [])


def read_text(path: str) -> TextWorkload:
    """Read a file; raises TraceError with the line of what is wrong."""
    data = read_regular(path, _MOST_BYTES, TraceError, what="a text workload", remedy="name a file of ASTRA-sim 1.0")
    try:
        lines = data.decode("utf-8-sig").splitlines()
    except UnicodeDecodeError:
        raise TraceError(path, "is not text", "name a file of ASTRA-sim 1.0") from None
    words = [(number, line.split()) for number, line in enumerate(lines, 1) if line.strip()]
    comments = len(words)
    words = [(number, line) for number, line in words if not line[0].startswith("#")]
    comments -= len(words)
    if len(words) < 2:
        raise TraceError(path, "has no layers", "write kind, number of layers, and a line for each layer")
    first, kind = f"{path}:{words[0][0]}", words[0][1][0]
    if kind not in KINDS:
        raise TraceError(first, f'"{kind}" is no kind of parallelism', f"write one of {', '.join(KINDS)}")
    numbers = _numbers(words[0][1][1:], first)
    count = _number(words[1][1][0], f"{path}:{words[1][0]}", "the number of layers")
    if count != len(words) - 2 or not 0 < count <= _MOST_LAYERS:
        raise TraceError(f"{path}:{words[1][0]}", f"says {count} layers, and {len(words) - 2} follow", "write them all")
    for name in _OF_LAYERS:
        for index in numbers.get(name, ()):
            if index >= count:
                raise TraceError(first, f"{name} names layer {index} of {count}", f"write 0 to {count - 1}")
    layers = tuple(_layer(cells, f"{path}:{number}", kind) for number, cells in words[2:])
    ended = next((layer for layer in layers if any(phase.group for phase in layer.phases)), None)
    if ended is not None and not ("ep" in numbers and ended.kind in TRANSFORMERS):
        problem = "names a group of experts, and the first line gives no ep of a transformer"
        raise TraceError(ended.place, problem, f"write a first line such as {TRANSFORMERS[1]} {MODEL}: 4 ep: 2")
    return TextWorkload(kind, layers, numbers, first, comments)


def _number(text: str, place: str, noun: str) -> int:
    if not text.isascii() or not text.isdigit() or len(text) > 19 or int(text) > _MOST_NUMBER:
        raise TraceError(place, f'"{text}" is not {noun}', "write a whole number")
    return int(text)


def _numbers(words: Sequence[str], place: str) -> dict[str, tuple[int, ...]]:
    """``name: number …`` of the first line; lists begin with their length."""
    numbers: dict[str, tuple[int, ...]] = {}
    name = ""
    if len(words) == 1 and words[0].isdigit():
        return {"DLRM_LAST_BOTTOM_LAYER": (int(words[0]),)}  # as Chakra's converter has it
    for word in words:
        if word[0].isdigit() and name:
            # SimAI divides some.
            numbers[name] += (_number(word.removesuffix(".0"), place, f"a value of {name}"),)
        else:
            name = word.rstrip(":")
            if name in numbers:
                raise TraceError(place, f"gives {name} twice", "keep one of them")
            numbers[name] = ()
    for name, values in numbers.items():
        if name not in _NAMES:
            raise TraceError(
                place, f'"{name}" is no name of ASTRA-sim 1.0 or SimAI', f"write one of {', '.join(_NAMES)}"
            )
        if len(values) != 1 and name not in _LISTS:
            raise TraceError(place, f"{name} has {len(values)} values", f"write e.g. {name}: 1")
        if name == "pp" and values != (1,):
            problem = f"pp {values[0]} is no part of ASTRA-sim 1.0: the layers are those of one stage"
            raise TraceError(place, problem, "use the verb train for such a model")
        if name == "ep" and values == (0,):
            raise TraceError(place, "ep is 0", "write 1 where there are no experts")
    for name in _LISTS:
        count, *items = numbers.get(name, (0,)) or (0,)
        if count != len(items):
            raise TraceError(place, f"{name} says {count}, and {len(items)} follow", "write the number, then that many")
        numbers[name] = tuple(items)
    return numbers


def _layer(words: Sequence[str], place: str, kind: str) -> Layer:
    mixed = kind == "HYBRID_CUSTOMIZED"
    if len(words) != 12 + mixed:
        raise TraceError(place, f"has {len(words)} words", f"write {12 + mixed}: see docs/traces.md")
    phases = []
    for i in (2, 5, 8):
        end = next((end for end in _ENDS if words[i + 1].endswith(end)), "")
        called = words[i + 1].removesuffix(end)
        if called not in (_WITH_END if end else _COLLECTIVES):
            known = f"{', '.join(_COLLECTIVES)}, or with _EP or _DP_EP one of {', '.join(_WITH_END)}"
            raise TraceError(place, f'"{words[i + 1]}" is no collective', f"write one of {known}")
        cycles, size = _number(words[i], place, "a compute time"), _number(words[i + 2], place, "a number of bytes")
        phases.append(Phase(cycles, _COLLECTIVES[called], size, end[1:]))
    if mixed and words[12] not in _SIMPLE:
        raise TraceError(place, f'"{words[12]}" is no kind of a layer', f"write one of {', '.join(_SIMPLE)}")
    update = _number(words[11], place, "a time of an update")
    return Layer(words[0], phases[0], phases[1], phases[2], update, words[12] if mixed else kind, place, words[1])
