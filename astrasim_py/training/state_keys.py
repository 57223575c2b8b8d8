"""Keys beside a training: its software, and the state of the machine, as a name or as what nccl-tests measured."""

from collections.abc import Mapping
from typing import Any

from pydantic import ValidationInfo

from astrasim_py.core.fields import FileName, did_you_mean, shown, wrong
from astrasim_py.core.strict_model import StrictModel, example
from astrasim_py.training.machine_states import state_names
from astrasim_py.training.software import software_names


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


#: The state of a machine: a name, or what tells it.
StateKey = str | NcclTests


def software_key(value: object, info: ValidationInfo) -> str:
    """The name of a preset of software."""
    if not isinstance(value, str) or value not in software_names():
        raise wrong(f"{shown(value)} is no software that is known", did_you_mean(str(value), software_names()))
    return value


def state_key(value: object, info: ValidationInfo) -> StateKey:
    """The name of a state, or the files that tell it."""
    if isinstance(value, Mapping | NcclTests):
        return NcclTests.model_validate(value, context=info.context)
    if not isinstance(value, str) or value not in state_names():
        remedy = f"write {', '.join(state_names())}, or {{nccl_tests: FILE}} with the output of all_gather_perf"
        raise wrong(f"{shown(value)} is no state of a machine", remedy)
    return value
