"""Which algorithm carries out which collective call."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple, Protocol

from pydantic import Field

from astrasim_py.core.conditions import NodeCondition, RanksCondition, SizeCondition, hold
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.core.fields import Name
from astrasim_py.core.notes import Notes
from astrasim_py.core.strict_model import StrictModel
from astrasim_py.core.units import format_size
from astrasim_py.program.algorithm import Algorithm


class When(StrictModel):
    """When a case applies; conditions such as ``<= 256 KiB``."""

    size: SizeCondition = None
    ranks: RanksCondition = None
    group: Name | None = None
    node: NodeCondition = None
    switches: bool | None = Field(
        default=None,
        description="whether switches that compute reach all NPUs of the call, as the algorithm needs them",
    )

    def holds(self, size: int, ranks: int, group: str, node: int = -1) -> bool:
        """True if the call of a node, of `size` bytes on a group of `ranks`, satisfies all but `switches`."""
        return (
            hold(self.size, size)
            and hold(self.ranks, ranks)
            and (self.group is None or self.group == group or group.startswith(f"{self.group}."))
            and (self.node is None or (node >= 0 and hold(self.node, node)))
        )


class AlgorithmCall(NamedTuple):
    """A collective call that asks for an algorithm."""

    collective: str
    ranks: int
    root: int = 0  # position in the group, of a rooted collective
    size: int = 0  # full buffer, bytes
    npus: tuple[int, ...] = ()  # of the group, in its order; empty where they are not known


class AlgorithmSource(Protocol):
    """What gives the algorithms of a case."""

    @property
    def by_placement(self) -> bool:
        """Whether an algorithm is made for the NPUs and the size of a call, and not for its ranks alone."""
        ...

    def for_call(self, call: AlgorithmCall) -> Algorithm:
        """The algorithm of a call. Raises AlgorithmError: it is not defined for such a one."""
        ...

    def reaches(self, npus: tuple[int, ...]) -> bool:
        """Whether switches that compute reach NPUs as its algorithm needs them."""
        ...


@dataclass(frozen=True, eq=False)
class FromFunction:
    """Algorithms that a function makes for calls."""

    function: Callable[[AlgorithmCall], Algorithm]
    by_placement: bool = False

    def for_call(self, call: AlgorithmCall) -> Algorithm:
        return self.function(call)

    def reaches(self, npus: tuple[int, ...]) -> bool:
        return False


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One algorithm and when it is used. `place`: where a person has written it; empty where it need not carry out a
    call."""

    source: AlgorithmSource
    when: When = When()
    place: str = ""

    def holds(self, call: AlgorithmCall, group: str, node: int) -> bool:
        """True if it is for the call of a node, on a group."""
        if not self.when.holds(call.size, call.ranks, group, node):
            return False
        switches = self.when.switches
        return switches is None or switches == self.source.reaches(call.npus)


class Way(NamedTuple):
    """One way to carry out a call: an algorithm, and the protocol of its messages."""

    algorithm: Algorithm
    protocol: str


class AlgorithmTable:
    """Cases per collective: the first that holds gives the algorithm of a call. Algorithms are made once each.

    `default`: ``default(collective, ranks, root) -> Algorithm``, or a source, for collectives without cases. `notes`:
    what sources find out when a call asks them.
    """

    def __init__(
        self,
        cases: Mapping[str, Sequence[Case]],
        default: Callable[[str, int, int], Algorithm] | AlgorithmSource | None = None,
        notes: Notes | None = None,
    ) -> None:
        self._cases = {name: tuple(listed) for name, listed in cases.items()}
        self._default: tuple[Case, ...] = ()
        if callable(default):
            self._default = (Case(source=FromFunction(lambda call: default(*call[:3]))),)
        elif default is not None:
            self._default = (Case(source=default),)
        self.notes = Notes() if notes is None else notes
        self._made: dict[tuple, Algorithm] = {}
        #: By place of a case: whether it was chosen for a call.
        self.places = {case.place: False for listed in self._cases.values() for case in listed if case.place}
        #: Different conditions on ids of the workload's nodes.
        self.nodes = [*dict.fromkeys(c.when.node for listed in self._cases.values() for c in listed if c.when.node)]

    def is_default(self, collective: str) -> bool:
        """True if there is no case for a collective."""
        return collective not in self._cases

    def case(self, call: AlgorithmCall, group: str, node: int = -1) -> Case:
        """The case that applies to a call; raises, and has parameters, as `select`."""
        for case in self._cases.get(call.collective, self._default):
            if case.holds(call, group, node):
                if case.place:
                    self.places[case.place] = True
                return case
        raise AlgorithmError(
            f"algorithms.{call.collective}",
            f"no case holds for {format_size(call.size)} on {call.ranks} ranks of group {group}",
            "add a last case without `when`",
        )

    def select(
        self,
        collective: str,
        size: int,
        ranks: int,
        group: str,
        root: int = 0,
        *,
        node: int = -1,
        npus: tuple[int, ...] = (),
    ) -> Algorithm:
        """The algorithm for a call: `size` bytes of the full buffer on a `group` of so many `ranks`, the `npus` in
        their order; `root` is a position in it, `node` the id of the workload's node on the first member, -1 where
        unknown. Raises AlgorithmError: no case holds, or the algorithm is not defined for such a group."""
        call = AlgorithmCall(collective, ranks, root, size, npus)
        case = self.case(call, group, node)
        key = (case, call if case.source.by_placement else call[:3])
        if key not in self._made:
            self._made[key] = case.source.for_call(call)
        return self._made[key]
