"""Semantics: the rules in which simulators of the same input may differ."""

from __future__ import annotations

from collections.abc import Mapping
from fractions import Fraction
from typing import Annotated, Any

from pydantic import AfterValidator, Field, ValidationInfo

from astrasim_py.core.fields import Gamma, Size, Time, choice, did_you_mean, shown, written, wrong
from astrasim_py.core.strict_model import StrictModel
from astrasim_py.system.compatible import exclusions

DATA = "data"
DATA_AND_CTRL = "data+ctrl"

_NATIVE = {
    "dependencies": DATA,
    "rounding": "up_ps",
    "decimal_bandwidth": "as_written",
    "zero_duration_ps": 0,
    "gamma": Fraction(0),
    "cpu_slots": 1,
    "compute_slots": 1,
    "comm_slots": "unlimited",
    "injected_sizes": "symbolic",
    "analytical_route": "all_hops",
    "message_match": "instance",
    "rendezvous_bytes": 0,
    "event_order": "issued",
    "issue_order": "id",
    "exposed": "waiting",
}
#: Our own rules, and those of ASTRA-sim 2.x's analytical backends.
NAMED: Mapping[str, Mapping[str, Any]] = {
    "native": _NATIVE,
    "astra_sim": _NATIVE
    | {
        "dependencies": DATA_AND_CTRL,
        "rounding": "floor_ns",
        "decimal_bandwidth": "binary",
        "zero_duration_ps": 1000,
        "comm_slots": 1,
        "injected_sizes": "verbatim",
        "analytical_route": "lowest_dim",
        "message_match": "bytes",
        "exposed": "finish_minus_compute",
    },
}
_SLOTS = ("cpu_slots", "compute_slots", "comm_slots")
Slots = Annotated[
    int | None,
    choice("unlimited", whole_numbers=True),
    AfterValidator(lambda value: None if value == "unlimited" else value),
]


def _of_set(key: str, **more: Any) -> Any:
    """A field with the rule of the named set where none is given."""

    def rule(data: Mapping[str, Any]) -> Any:
        value = NAMED[data["name"]][key]
        return None if value == "unlimited" else value

    return Field(default_factory=rule, **more)


class Semantics(StrictModel):
    """A named set of rules, with any of them replaced."""

    _place = "semantics"

    #: The named set that fills in rules that are not given.
    name: Annotated[str, choice("native", "astra_sim")] = Field(default="native", alias="base")
    #: Edges honoured in workload traces; if it is not said, a workload without data dependencies is ordered by its
    #: control dependencies. Algorithm traces honour both kinds always.
    dependencies: Annotated[str, choice(DATA, DATA_AND_CTRL)] | None = _of_set("dependencies")
    #: ``up_ps``: delays round up to whole picoseconds. ``floor_ns``: each delay is the floor of a double-precision
    #: number of nanoseconds, taken once.
    rounding: Annotated[str, choice("up_ps", "floor_ns")] = _of_set("rounding")
    #: ``binary``: network bandwidths written in kB, MB, GB per second mean powers of 1024.
    decimal_bandwidth: Annotated[str, choice("as_written", "binary")] = _of_set("decimal_bandwidth")
    #: Cost of a recorded duration of 0.
    zero_duration_ps: Time = _of_set("zero_duration_ps", alias="zero_duration", examples=["1 ns"])
    #: Local reduction time in seconds per byte, for reductions whose size is known.
    gamma: Gamma = _of_set("gamma", examples=["20 ns/MiB"])
    #: Nodes of a workload that may be in flight on one NPU; None is unlimited.
    cpu_slots: Slots = _of_set("cpu_slots")
    compute_slots: Slots = _of_set("compute_slots")
    comm_slots: Slots = _of_set("comm_slots")
    #: ``symbolic``: a message's bytes follow the collective's size. ``verbatim``: the algorithm's own ``comm_size``
    #: is used whatever the workload asks for.
    injected_sizes: Annotated[str, choice("symbolic", "verbatim")] = _of_set("injected_sizes")
    #: Under the analytical model a message pays ``all_hops``, or only those of the ``lowest_dim`` in which source and
    #: destination differ.
    analytical_route: Annotated[str, choice("all_hops", "lowest_dim")] = _of_set("analytical_route")
    #: ``instance``: the k-th send matches the k-th receive of one (instance, src, dst, tag), and unequal bytes are an
    #: error. ``bytes``: of one (src, dst, tag, bytes), across instances.
    message_match: Annotated[str, choice("instance", "bytes")] = _of_set("message_match")
    #: Bytes of the control message that a receiver sends when it posts a receive, and whose arrival lets the message
    #: go; 0: messages go when they are sent.
    rendezvous_bytes: Size = _of_set(
        "rendezvous_bytes",
        description="of the message by which a receive requests its payload; 0 B for none",
        examples=["8 KiB"],
    )
    #: Of events at one time: ``issued``: those of the action issued first go first, and ranks dispatch when none is
    #: left. ``scheduled``: first scheduled, first taken (each hop is scheduled when its link begins to serve it; the
    #: timers of a rank for one time go with their first), and a rank made ready dispatches before the next event.
    event_order: Annotated[str, choice("issued", "scheduled")] = _of_set("event_order")
    #: Nodes of an injected algorithm that become ready together are issued by ``id``, or in the order of the C++
    #: ``hash_set`` that holds them in ASTRA-sim; this takes ``event_order: scheduled``.
    issue_order: Annotated[str, choice("id", "hash_set")] = _of_set("issue_order")
    #: ``waiting``: time with communication in flight and no compute running. ``finish_minus_compute``: a rank's finish
    #: less the sum of its compute.
    exposed: Annotated[str, choice("waiting", "finish_minus_compute")] = _of_set("exposed")

    @classmethod
    def _normalized(cls, value: Any, info: ValidationInfo) -> Any:
        if isinstance(value, str):
            if value not in NAMED:
                raise wrong(f"{shown(value)} is not a set of semantics", did_you_mean(value, NAMED))
            return {"base": value}
        if not isinstance(value, Mapping):
            return value
        if not written(info):
            value = {k: "unlimited" if k in _SLOTS and v is None else v for k, v in value.items()}
        # A rule of None is that of the set, as if it were not given.
        return {k: v for k, v in value.items() if v is not None or k not in (*_NATIVE, "zero_duration")}

    def _complete(self) -> None:
        for exclusion in exclusions({"semantics": self}):
            raise wrong(exclusion.problem, exclusion.remedy, ("issue_order",))

    @classmethod
    def native(cls, **overrides: Any) -> Semantics:
        """Our own rules, with any of them replaced."""
        return cls(**overrides)

    @classmethod
    def astra_sim(cls, **overrides: Any) -> Semantics:
        """The rules of ASTRA-sim 2.x's analytical backends, with any of them replaced."""
        return cls(name="astra_sim", **overrides)

    @property
    def said_dependencies(self) -> str | None:
        """`dependencies` where somebody chose them, by name or by a set other than the native one; else None."""
        return self.dependencies if self.name != "native" or "dependencies" in self.model_fields_set else None

    @property
    def binary_bandwidth(self) -> bool:
        """Whether GB of network bandwidth means 2**30."""
        return self.decimal_bandwidth == "binary"
