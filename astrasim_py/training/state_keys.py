"""Keys beside a training: its software, and the state of the machine, as a name or as what nccl-tests measured."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo

from astrasim_py.core.fields import FileName, did_you_mean, shown, wrong
from astrasim_py.core.strict_model import StrictModel, example
from astrasim_py.training.machine_states import state_names
from astrasim_py.training.software import DEFAULT, IDEAL, Software, software, software_names


def _known(value: object) -> str:
    if not isinstance(value, str) or value not in software_names():
        raise wrong(f"{shown(value)} is no software that is known", did_you_mean(str(value), software_names()))
    return value


class NcclTests(StrictModel):
    """Output of nccl-tests on the machine, in one file or several."""

    _place = "state"

    nccl_tests: tuple[FileName, ...] = example("all_gather.txt")

    @classmethod
    def _normalized(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, Mapping) and isinstance(value.get("nccl_tests"), str):
            return {**value, "nccl_tests": (value["nccl_tests"],)}
        return value

    def _complete(self) -> None:
        if not self.nccl_tests:
            raise wrong("no file is named", "write e.g. nccl_tests: all_gather.txt", ("nccl_tests",))


class OwnSoftware(StrictModel):
    """A preset of software with other constants, e.g. those that are fitted to runs of one's own."""

    _place = "software"

    base: Annotated[str, AfterValidator(_known)] = DEFAULT
    host: Annotated[float, Field(ge=0)] | None = Field(
        default=None, description="factor on the host's launches of the base"
    )
    gemm: Annotated[float, Field(gt=0)] | None = Field(default=None, description="scale of matrix products")
    nic: Annotated[float, Field(gt=0, le=1)] | None = Field(default=None, description="share of the NIC bandwidth")
    nvlink: Annotated[float, Field(gt=0, le=1)] | None = Field(default=None, description="share inside a node")
    interference: Annotated[float, Field(ge=0, le=1)] | None = Field(default=None, description="cost of overlap")

    def _complete(self) -> None:
        if self.base == IDEAL:
            raise wrong(f"{IDEAL} has no constants to change", "name another base, e.g. pytorch", ("base",))
        if not self.changes:
            raise wrong("changes no constant", f"write software: {self.base}, or e.g. gemm: 1.1")

    @property
    def changes(self) -> dict[str, Any]:
        """Constants that differ from those of the base."""
        return {key: value for key, value in self if key != "base" and value is not None}

    def software(self) -> Software:
        """The preset with its changes."""
        preset, changes = software(self.base), self.changes
        name = f"{self.base} with {', '.join(f'{key} {value:.3g}' for key, value in changes.items())}"
        if "host" in changes:
            changes["host"] *= float(preset.constants.host)
        return replace(preset, name=name, constants=replace(preset.constants, **changes))


#: Software: the name of a preset, or one that is changed.
SoftwareKey = str | OwnSoftware
#: The state of a machine: a name, or what tells it.
StateKey = str | NcclTests


def software_key(value: object, info: ValidationInfo) -> SoftwareKey:
    """The name of a preset of software, or one that is changed."""
    if isinstance(value, Mapping | OwnSoftware):
        return OwnSoftware.model_validate(value, context=info.context)
    return _known(value)


def named_software(key: SoftwareKey) -> Software:
    """The software that a key means."""
    return key.software() if isinstance(key, OwnSoftware) else software(key)


def state_key(value: object, info: ValidationInfo) -> StateKey:
    """The name of a state, or the files that tell it."""
    if isinstance(value, Mapping | NcclTests):
        return NcclTests.model_validate(value, context=info.context)
    if not isinstance(value, str) or value not in state_names():
        remedy = f"write {', '.join(state_names())}, or {{nccl_tests: FILE}} with the output of all_gather_perf"
        raise wrong(f"{shown(value)} is no state of a machine", remedy)
    return value
