"""Which algorithm carries out which collective call."""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from pydantic import Field

from astrasim_py.core.conditions import NodeCondition, RanksCondition, SizeCondition, hold
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.core.fields import Name
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


@dataclass(frozen=True, slots=True, kw_only=True)
class Case:
    """One algorithm and when it is used. `fit`: ``fit(collective, npus, size, root) -> Algorithm``, for an algorithm
    that is made for the NPUs and the size of a call; then `make` is not used. `reached`: ``reached(npus) -> bool``:
    whether switches that compute reach NPUs as it needs. `place`: where a person has written it; empty where it
    need not carry out a call."""

    make: Callable[[str, int, int], Algorithm]  # ``make(collective, ranks, root) -> Algorithm``
    when: When = When()
    fit: Callable[[str, tuple[int, ...], int, int], Algorithm] | None = None
    reached: Callable[[tuple[int, ...]], bool] | None = None
    place: str = ""

    def holds(self, size: int, ranks: int, group: str, node: int, npus: tuple[int, ...]) -> bool:
        """True if it is for the call of a node, on the `npus` of a group."""
        if not self.when.holds(size, ranks, group, node):
            return False
        wanted = self.when.switches
        return wanted is None or wanted == (self.reached is not None and self.reached(npus))


class AlgorithmTable:
    """Cases per collective: the first that holds gives the algorithm of a call. Algorithms are made once each.
    `default`:
    ``default(collective, ranks, root) -> Algorithm`` for collectives without cases."""

    def __init__(
        self, cases: Mapping[str, Sequence[Case]], default: Callable[[str, int, int], Algorithm] | None = None
    ) -> None:
        self._cases = {name: tuple(listed) for name, listed in cases.items()}
        self._default = None if default is None else Case(make=default)
        self._made: dict[tuple, Algorithm] = {}
        #: By place of a case: whether it was chosen for a call.
        self.places = {case.place: False for listed in self._cases.values() for case in listed if case.place}
        #: Different conditions on ids of the workload's nodes.
        self.nodes = [*dict.fromkeys(c.when.node for listed in self._cases.values() for c in listed if c.when.node)]

    def is_default(self, collective: str) -> bool:
        """True if there is no case for a collective."""
        return collective not in self._cases

    def case(
        self, collective: str, size: int, ranks: int, group: str, node: int = -1, npus: tuple[int, ...] = ()
    ) -> Case:
        """The case that applies to a call; parameters as for `select`."""
        listed = self._cases.get(collective)
        if listed is None:
            listed = () if self._default is None else (self._default,)
        for case in listed:
            if case.holds(size, ranks, group, node, npus):
                if case.place:
                    self.places[case.place] = True
                return case
        raise AlgorithmError(
            f"algorithms.{collective}",
            f"no case holds for {format_size(size)} on {ranks} ranks of group {group}",
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
        case = self.case(collective, size, ranks, group, node, npus)
        key = (collective, case, ranks, root, *(() if case.fit is None else (size, npus)))
        if key not in self._made:
            fitted = case.fit is not None
            self._made[key] = case.fit(collective, npus, size, root) if fitted else case.make(collective, ranks, root)
        return self._made[key]
