"""ASTRA-sim's command line as keys of a scenario: ``workload: {astra_sim: {…}}``."""

from collections.abc import Iterator, Mapping
from typing import Annotated, Any

from pydantic import ConfigDict, Field, ValidationInfo

from astrasim_py.core.choices import ASTRA_SIM_BACKENDS
from astrasim_py.core.document import Value
from astrasim_py.core.fields import Count, FileName, Text, choice, wrong
from astrasim_py.core.strict_model import Mistake, StrictModel, example
from astrasim_py.topology.from_keys import ASTRA_SIM


class AstraSimFile(StrictModel):
    """A configuration file of ASTRA-sim; keys beside `file` take the place of its own."""

    model_config = ConfigDict(extra="allow")

    file: FileName = example("system.json")

    @classmethod
    def _normalized(cls, value: Any, info: ValidationInfo) -> Any:
        return {"file": value} if isinstance(value, str) else value

    @property
    def changes(self) -> dict[str, object]:
        """Values of keys in place of those of the file."""
        return dict(self.model_extra or {})


def _flag(key: object) -> object:
    """A key as the command line of ASTRA-sim has it, ``--network-configuration``, as it is here."""
    if not isinstance(key, str):
        return key
    return key.lstrip("-").replace("-", "_").removesuffix("_configuration")


class AstraSimInputs(StrictModel):
    """ASTRA-sim's command line: keys are its flags without ``-configuration``."""

    workload: FileName = example("hgx/all_reduce")
    system: AstraSimFile = example("hgx/system.json")
    network: AstraSimFile = example("hgx/network.yml")
    remote_memory: AstraSimFile | None = Field(default=None, description="by default there is none")
    comm_group: FileName | None = Field(default=None, description="by default what METADATA nodes declare")
    num_queues_per_dim: Count = 1
    injection_scale: Annotated[float, Field(ge=0, le=1e9)] = Field(
        default=1.0, description="multiplies the endpoint delay"
    )
    rendezvous_protocol: bool = False
    backend: Annotated[str, choice(*ASTRA_SIM_BACKENDS)] = Field(
        default="congestion_unaware", description="which analytical backend of ASTRA-sim"
    )
    corrected: bool = Field(default=False, description="the physics instead of ASTRA-sim's numbers")
    folder: Text | None = Field(
        default=None, description="what prefixes of injected algorithms start from; by default the scenario's"
    )

    @classmethod
    def _normalized(cls, value: Any, info: ValidationInfo) -> Any:
        if not isinstance(value, Mapping):
            return value
        if "logical_topology" in map(_flag, value):
            remedy = "ns-3 is not run here: write its dimensions in the network YAML"
            raise wrong("logical_topology is of ASTRA-sim's ns-3 binary", remedy)
        # An unknown key stays as written, so that its place is said.
        keys = {key: _flag(key) if _flag(key) in cls.model_fields else key for key in value}
        return {
            keys[key]: None if keys[key] == "comm_group" and item == "empty" else item for key, item in value.items()
        }


#: Keys that ASTRA-sim's files say.
_OF_ASTRA_SIM = (
    *("topologies", "topology", "placement", "ranks", "groups", "algorithms", "collectives", "stragglers"),
    *("network", "compute", "memory", "semantics", "noise", "nic", "verify"),
)


def _is_false(value: Value | None) -> bool:
    return value is not None and value.data is False


def inputs_mistakes(document: Value) -> Iterator[Mistake]:
    """Keys beside a workload of ASTRA-sim's files."""
    ours = document.get("topologies", ASTRA_SIM, "shape")
    allowed = {"topologies": ours is not None, "verify": _is_false(document.get("verify"))}
    for key in _OF_ASTRA_SIM:
        if key in document.mapping and not allowed.get(key):
            yield Mistake((key,), True, "is said by ASTRA-sim's files", "drop it, or change keys of system and network")
