"""What the numbers mean: every rule in which two simulators of the same input may differ, as one value."""

from __future__ import annotations

from dataclasses import dataclass, fields, replace
from fractions import Fraction

from astrasim_py.core.errors import ScenarioError

DATA = "data"
DATA_AND_CTRL = "data+ctrl"

CHOICES = {
    "dependencies": (DATA, DATA_AND_CTRL),
    "rounding": ("up_ps", "floor_ns"),
    "decimal_bandwidth": ("as_written", "binary"),
    "injected_sizes": ("symbolic", "verbatim"),
    "analytical_route": ("all_hops", "lowest_dim"),
    "message_match": ("instance", "bytes"),
    "event_order": ("issued", "scheduled"),
    "exposed": ("waiting", "finish_minus_compute"),
}


@dataclass(frozen=True, slots=True, kw_only=True)
class Semantics:
    """The rules of one simulation.

    Attributes
    ----------
    name : str
        ``native`` or ``astra_sim``: where the defaults came from.
    dependencies : str
        Edges honoured in workload traces: ``data`` or ``data+ctrl``. Algorithm traces honour both always.
    rounding : str
        ``up_ps``: delays round up to whole picoseconds. ``floor_ns``: each delay is the floor of a
        double-precision number of nanoseconds, taken once.
    decimal_bandwidth : str
        ``binary``: network bandwidths written in kB, MB, GB per second mean powers of 1024.
    zero_duration_ps : int
        What a recorded duration of 0 costs.
    gamma : fractions.Fraction
        Local reduction time, seconds per byte, for reductions whose size is known.
    cpu_slots, compute_slots, comm_slots : int or None
        Nodes of a workload that may be in flight on one NPU; None is unlimited.
    injected_sizes : str
        ``symbolic``: a message's bytes follow the collective's size. ``verbatim``: the algorithm's own
        ``comm_size`` is used whatever the workload asks for.
    analytical_route : str
        Under the analytical model a message pays ``all_hops``, or only those of the ``lowest_dim`` in which
        source and destination differ.
    message_match : str
        ``instance``: the k-th send matches the k-th receive of one (instance, src, dst, tag), and unequal
        bytes are an error. ``bytes``: of one (src, dst, tag, bytes), across instances.
    rendezvous_bytes : int
        Bytes of the control message that a receiver sends to the sender when it posts a receive, and whose arrival
        lets the message go; 0: messages go when they are sent.
    event_order : str
        Of events at one time: ``issued``: those of the action that was issued first go first, and ranks dispatch
        when none is left. ``scheduled``: first scheduled, first taken (each hop of a message is scheduled when its
        link begins to serve it; the timers of a rank for one time go with their first), and whoever is made ready
        dispatches before the next.
    exposed : str
        ``waiting``: time with communication in flight and no compute running. ``finish_minus_compute``:
        a rank's finish less the sum of its compute.
    """

    name: str = "native"
    dependencies: str = DATA
    rounding: str = "up_ps"
    decimal_bandwidth: str = "as_written"
    zero_duration_ps: int = 0
    gamma: Fraction = Fraction(0)
    cpu_slots: int | None = 1
    compute_slots: int | None = 1
    comm_slots: int | None = None
    injected_sizes: str = "symbolic"
    analytical_route: str = "all_hops"
    message_match: str = "instance"
    rendezvous_bytes: int = 0
    event_order: str = "issued"
    exposed: str = "waiting"

    def __post_init__(self) -> None:
        for key, allowed in CHOICES.items():
            value = getattr(self, key)
            if value not in allowed:
                raise ScenarioError(f"semantics.{key}", f'"{value}" is unknown', f"write one of {', '.join(allowed)}")
        for key in ("cpu_slots", "compute_slots", "comm_slots"):
            value = getattr(self, key)
            if value is not None and value < 1:
                raise ScenarioError(f"semantics.{key}", f"{value} is less than 1", "write 1 or more")
        if self.gamma < 0 or self.zero_duration_ps < 0 or self.rendezvous_bytes < 0:
            raise ScenarioError("semantics", "gamma, zero_duration_ps and rendezvous_bytes cannot be negative")

    @classmethod
    def native(cls, **overrides) -> Semantics:
        """Our own rules, with any of them replaced."""
        return replace(cls(), **overrides)

    @classmethod
    def astra_sim(cls, **overrides) -> Semantics:
        """The rules of ASTRA-sim 2.x's analytical backends, with any of them replaced."""
        base = cls(
            name="astra_sim",
            dependencies=DATA_AND_CTRL,
            rounding="floor_ns",
            decimal_bandwidth="binary",
            zero_duration_ps=1000,
            comm_slots=1,
            injected_sizes="verbatim",
            analytical_route="lowest_dim",
            message_match="bytes",
            exposed="finish_minus_compute",
        )
        return replace(base, **overrides)


#: The two named sets of rules.
NAMED = {"native": Semantics.native, "astra_sim": Semantics.astra_sim}
PARAMETERS = tuple(f.name for f in fields(Semantics) if f.name != "name")
