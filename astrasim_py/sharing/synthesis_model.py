"""Models learned from workloads: a repeated block, and the parts before and after it.

Every rank executes *places* one after the other: calls, or kernels where a rank runs alone. A place has *steps*:
compute that leads to it, and last itself. Steps wait for steps of places before them. The model of a block holds, for
each of its places, its values in every occurrence. There are no names.
"""

import json
import os
from typing import Annotated, Literal

from pydantic import Field, ValidationError

from astrasim_py.core.errors import TraceError
from astrasim_py.core.fields import wrong
from astrasim_py.core.files import read_regular
from astrasim_py.core.strict_model import StrictModel, mistakes, tuples

Count = Annotated[int, Field(ge=0, le=2**62)]
Index = Annotated[int, Field(ge=0, le=2**31)]
#: Largest file of a model, bytes.
MAX_MODEL = 2**30
Kind = Literal["compute", "collective", "send", "recv", "load", "store"]
Name = Annotated[str, Field(max_length=100)]


class Wait(StrictModel):
    """A step waits for another one, and then some time.

    `back`: so many places before; or `at`: at that place of the whole, -1 the start. `step`: of that place, -1 the
    last, -2 the one before. `ps`: by occurrence, null where it does not wait.
    """

    back: Index | None = None
    at: Annotated[int, Field(ge=-1)] | None = None
    step: Annotated[int, Field(ge=-(2**31), le=-1)] = -1
    ps: tuple[Count | None, ...]

    def _complete(self) -> None:
        if (self.back is None) == (self.at is None):
            raise wrong("needs back or at", "write one of them", ("back",))


class PlaceStep(StrictModel):
    """`takes_ps`: by occurrence, of compute, null where there is no such step. `cpu`: of the host."""

    takes_ps: tuple[Count | None, ...] = ()
    cpu: bool = False
    waits: tuple[Wait, ...] = ()


class Place(StrictModel):
    """A place in a rank's program: its last step, and the compute that leads to it.

    `group`, `peer`: numbers in the lists of the rank; no group is all ranks. `attributes`: of Chakra, the same in every
    occurrence. `sizes`: attributes of Chakra by occurrence. `tags`: of messages, by occurrence.
    """

    kind: Kind
    group: Index | None = None
    peer: Index | None = None
    attributes: dict[Literal["comm_type", "comm_root", "comm_priority"], Count] = Field(default_factory=dict)
    sizes: dict[Literal["comm_size", "coll_size", "tensor_size"], tuple[Count, ...]] = Field(default_factory=dict)
    tags: tuple[Index, ...] = ()
    steps: Annotated[tuple[PlaceStep, ...], Field(min_length=1)]

    def values(self) -> list[tuple[int | None, ...]]:
        """All lists by occurrence; those that are absent are empty."""
        waits = [wait.ps for step in self.steps for wait in step.waits]
        return [*waits, *(step.takes_ps for step in self.steps), *self.sizes.values(), self.tags]

    def check(self, occurrences: int, prefix: int, first: int) -> None:
        if any(len(values) not in (0, occurrences) for values in self.values()):
            raise wrong("does not have one value for each occurrence", f"write {occurrences}", ("steps",))
        if None in self.steps[-1].takes_ps:
            raise wrong("has no last step in an occurrence", "write what it takes", ("steps",))
        for number, step in enumerate(self.steps):
            for wait in step.waits:
                later = wait.back == 0 and not 0 <= wait.step + len(self.steps) < number
                if later or (wait.at is not None and wait.at >= min(prefix, first)) or not wait.ps:
                    raise wrong("waits for what comes later, or for no time", "wait for a step before it", ("steps",))
        if (self.kind in ("send", "recv")) != (self.peer is not None):
            raise wrong("messages have a peer, and nothing else has", "write peer: 0", ("peer",))


class PlaceProgram(StrictModel):
    """A rank's program: a prefix, `occurrences` blocks, and a suffix."""

    prefix: tuple[Place, ...] = ()
    block: tuple[Place, ...] = ()
    suffix: tuple[Place, ...] = ()
    occurrences: Index = 0

    def _complete(self) -> None:
        for number, place in enumerate((*self.prefix, *self.block, *self.suffix)):
            inside = len(self.prefix) <= number < len(self.prefix) + len(self.block)
            place.check(self.occurrences if inside else 1, len(self.prefix), number)


class RankModel(StrictModel):
    """The program of a rank, its groups and peers."""

    program: Index
    groups: tuple[Name, ...] = ()
    peers: tuple[Index, ...] = ()


class WorkloadModel(StrictModel):
    """One workload. `nominal_ps`: how long it takes on an ordinary network."""

    nominal_ps: Count
    groups: dict[Name, tuple[Index, ...]] = Field(default_factory=dict)
    ranks: Annotated[tuple[RankModel, ...], Field(min_length=1)]
    programs: tuple[PlaceProgram, ...]

    def _complete(self) -> None:
        if len({program.occurrences for program in self.programs}) > 1:
            raise wrong("programs have blocks of different numbers", "write the same occurrences", ("programs",))
        for rank, rank_model in enumerate(self.ranks):
            if rank_model.program >= len(self.programs):
                raise wrong(f"there is no program {rank_model.program}", "write one that is there", ("ranks", rank))
            program = self.programs[rank_model.program]
            for place in (*program.prefix, *program.block, *program.suffix):
                if (place.group or 0) > len(rank_model.groups) - (place.group is not None) or (
                    place.peer is not None and place.peer >= len(rank_model.peers)
                ):
                    raise wrong("lacks a group or a peer of its program", "write all of them", ("ranks", rank))

    @property
    def repeats(self) -> int:
        """Occurrences of the block; 0 where nothing repeats on all ranks together."""
        return self.programs[0].occurrences if self.programs else 0


class SynthesisModel(StrictModel):
    """Models of one workload or of several."""

    format: Literal["astrasim_py synthesis 1"] = "astrasim_py synthesis 1"
    workloads: Annotated[tuple[WorkloadModel, ...], Field(min_length=1)]


def write_model(model: SynthesisModel) -> bytes:
    """The model as JSON, a line for each place."""
    plain = {"format": model.format} | model.model_dump(mode="json", exclude_defaults=True)
    return (_lines(plain, 0) + "\n").encode()


def _lines(value: object, depth: int) -> str:
    short = json.dumps(value, separators=(", ", ": "))
    if depth >= 6 or len(short) < 100 or not isinstance(value, dict | list):
        return short
    pad, end = "\n" + " " * (depth + 1), "\n" + " " * depth
    if isinstance(value, dict):
        return "{" + ",".join(f"{pad}{json.dumps(k)}: {_lines(v, depth + 1)}" for k, v in value.items()) + end + "}"
    return "[" + ",".join(pad + _lines(item, depth + 1) for item in value) + end + "]"


def read_model(path: str | os.PathLike) -> SynthesisModel:
    """Read a model. Raises TraceError: no JSON, or no model."""
    place, remedy = os.fspath(path), "write one with trace learn"
    data = read_regular(place, MAX_MODEL, TraceError, what="a model", remedy=remedy)
    try:
        return SynthesisModel.model_validate(tuples(json.loads(data)), context={"written": True})
    except ValidationError as error:
        first = next(mistakes(error))
        raise TraceError(
            ": ".join(filter(None, (place, first.path()))), first.problem, first.remedy or remedy
        ) from None
    except (ValueError, RecursionError) as error:
        raise TraceError(place, f"is no JSON: {error}", remedy) from None
