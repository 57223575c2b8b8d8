"""Whether an operation has the references and channels that it takes."""

from typing import NamedTuple

from astrasim_py.mscclpp.ir import PORT, Grouped, Local, Operation, Remote
from astrasim_py.mscclpp.json_places import Path
from astrasim_py.mscclpp.operations import KINDS

_NAMES = {"L": "a buffer of the rank", "R": "a remote buffer", "S": "a switch channel"}


class OperandFault(NamedTuple):
    """What is wrong, and what to write instead; `path`: of the value, below the operation."""

    path: Path
    problem: str
    remedy: str


def operand_fault(operation: Operation) -> OperandFault | None:
    """The first fault of an operation's references, if any."""
    kind, name = KINDS[operation.name], operation.name
    for key, rule, references in (
        ("src_buff", kind.sources, operation.sources),
        ("dst_buff", kind.targets, operation.targets),
    ):
        if not rule and references:
            return OperandFault((key,), f"is given to {name}, which takes none", "drop it")
        if len(references) < len(rule.rstrip("R")) + (rule == "R"):
            return OperandFault((), f'{name} lacks "{key}"', f"write it: {_wanted(rule)}")
        for number, reference in enumerate(references):
            letter = {Local: "L", Remote: "R", Grouped: "S"}[type(reference)]
            if letter != rule[min(number, len(rule) - 1)]:
                problem = f"is {_NAMES[letter]}, and {name} takes {_wanted(rule)}"
                return OperandFault((key, number), problem, "write that")
    sources, targets = len(operation.sources), len(operation.targets)
    if kind.pairs and sources != targets:
        problem = f"{name} has {sources} sources and {targets} destinations"
        return OperandFault((), problem, "write as many of both")
    if kind.unit and operation.channel_type == PORT and len(operation.channels) < targets:
        problem = f"{name} has {len(operation.channels)} channels for {targets} destinations"
        return OperandFault((), problem, "write a channel for each")
    if not kind.pairs and len({reference.size for reference in (*operation.sources, *operation.targets)}) > 1:
        return OperandFault((), f"{name} has references of different sizes", "give all the same size")
    for source, target in zip(operation.sources, operation.targets, strict=True) if kind.pairs else ():
        if source.size != target.size:
            problem = f"{name} moves {source.size} chunks into {target.size}"
            return OperandFault((), problem, "give both the same size")
    return None


def _wanted(rule: str) -> str:
    return ", then ".join(_NAMES[letter] for letter in rule)
