"""A workload written in Python, item by item."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, TypedDict, Unpack

from astrasim_py.chakra.workload import Workload
from astrasim_py.collectives.collective import collective_name, promise_of
from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.shown import Shown
from astrasim_py.workload.items import Collective, Compute, Item, Memory, Send
from astrasim_py.workload.microbenchmarks import generate


class ItemKeys(TypedDict, total=False):
    """Keys of every item."""

    name: str  # for `after`
    after: str | Sequence[str] | None  # names of items that must be done before; the one before by default
    repeat: int


class ComputeKeys(ItemKeys, total=False):
    """Further keys of compute; see `astrasim_py.workload.items.Compute`."""

    tiles: int
    consumes: str
    produces: str
    tile_overhead: int | str
    comm_slows_compute: float | str


class WorkloadBuilder(Shown):
    """A workload of items that run one after the other on every rank, unless ``after`` says otherwise.

    Each method adds an item and returns the same object. Quantities are text with a unit, or whole bytes and
    picoseconds. Every item also takes ``name``, ``after`` (names of items that must be done before, ``[]`` for none)
    and ``repeat``, as an item of a scenario does.

    Parameters
    ----------
    ranks : int
    groups : mapping of str to sequences of ranks, optional
        Each name stands for one group or for several disjoint ones.
    name : str

    Examples
    --------
    >>> step = WorkloadBuilder(8, groups={"pair": [[0, 1], [2, 3], [4, 5], [6, 7]]})
    >>> for layer in range(3):
    ...     _ = step.compute("100 us").all_gather("4 MiB", group="pair")
    >>> step.all_reduce("64 MiB").build()
    Workload(workload: 8 ranks, 56 nodes, 4 groups)
    """

    def __init__(
        self, ranks: int, groups: Mapping[str, Sequence[Sequence[int]]] | None = None, name: str = "workload"
    ) -> None:
        if isinstance(ranks, bool) or not isinstance(ranks, int) or ranks < 1:
            raise ScenarioError("workload", f"{ranks!r} is not a number of ranks", "write 1 or more")
        self.ranks, self.name, self.items = ranks, name, list[Item]()
        self.groups = {key: _listed(key, members) for key, members in (groups or {}).items()}

    def collective(
        self,
        kind: str,
        size: int | str,
        group: str | Sequence[int] | None = None,
        *,
        root: int = 0,
        **keys: Unpack[ItemKeys],
    ) -> WorkloadBuilder:
        """Add a collective. `size`: full buffer. `group`: a name, or ranks; all by default. `root`: a position in the
        group. Raises ScenarioError: a wrong value.
        """
        kind = collective_name(kind, f"workload[{len(self.items)}]")
        if root and not promise_of(kind).rooted:
            raise ScenarioError(f"workload[{len(self.items)}].root", f"{kind} takes no root", "drop the root")
        return self._add(Collective, type=kind, size=size, group=group, root=root, **keys)

    def all_reduce(
        self, size: int | str, group: str | Sequence[int] | None = None, **keys: Unpack[ItemKeys]
    ) -> WorkloadBuilder:
        """Add a `collective`."""
        return self.collective("all_reduce", size, group, **keys)

    def all_gather(
        self, size: int | str, group: str | Sequence[int] | None = None, **keys: Unpack[ItemKeys]
    ) -> WorkloadBuilder:
        """Add a `collective`."""
        return self.collective("all_gather", size, group, **keys)

    def reduce_scatter(
        self, size: int | str, group: str | Sequence[int] | None = None, **keys: Unpack[ItemKeys]
    ) -> WorkloadBuilder:
        """Add a `collective`."""
        return self.collective("reduce_scatter", size, group, **keys)

    def all_to_all(
        self, size: int | str, group: str | Sequence[int] | None = None, **keys: Unpack[ItemKeys]
    ) -> WorkloadBuilder:
        """Add a `collective`."""
        return self.collective("all_to_all", size, group, **keys)

    def broadcast(
        self, size: int | str, group: str | Sequence[int] | None = None, *, root: int = 0, **keys: Unpack[ItemKeys]
    ) -> WorkloadBuilder:
        """Add a `collective` with a root."""
        return self.collective("broadcast", size, group, root=root, **keys)

    def reduce(
        self, size: int | str, group: str | Sequence[int] | None = None, *, root: int = 0, **keys: Unpack[ItemKeys]
    ) -> WorkloadBuilder:
        """Add a `collective` with a root."""
        return self.collective("reduce", size, group, root=root, **keys)

    def gather(
        self, size: int | str, group: str | Sequence[int] | None = None, *, root: int = 0, **keys: Unpack[ItemKeys]
    ) -> WorkloadBuilder:
        """Add a `collective` with a root."""
        return self.collective("gather", size, group, root=root, **keys)

    def scatter(
        self, size: int | str, group: str | Sequence[int] | None = None, *, root: int = 0, **keys: Unpack[ItemKeys]
    ) -> WorkloadBuilder:
        """Add a `collective` with a root."""
        return self.collective("scatter", size, group, root=root, **keys)

    def barrier(self, group: str | Sequence[int] | None = None, **keys: Unpack[ItemKeys]) -> WorkloadBuilder:
        """Add a barrier: every rank waits until all have reached it."""
        return self.collective("barrier", 0, group, **keys)

    def compute(
        self,
        time: int | str | None = None,
        *,
        operations: int | str | None = None,
        bytes: int | str | None = None,
        ranks: Sequence[int] | None = None,
        **keys: Unpack[ComputeKeys],
    ) -> WorkloadBuilder:
        """Add compute: of a time, or of operations and the bytes that they move, priced by the problem's ``compute``.
        `ranks`: ranks that compute; all by default. Raises ScenarioError: a wrong value.
        """
        return self._add(Compute, time=time, operations=operations, bytes=bytes, ranks=ranks, **keys)

    def send(self, source: int, to: int, size: int | str, *, tag: int = 0, **keys: Unpack[ItemKeys]) -> WorkloadBuilder:
        """Add a message from one rank to another. Raises ScenarioError: a wrong value."""
        return self._add(Send, source=source, to=to, size=size, tag=tag, **keys)

    def memory(
        self,
        *,
        load: int | str | None = None,
        store: int | str | None = None,
        ranks: Sequence[int] | None = None,
        **keys: Unpack[ItemKeys],
    ) -> WorkloadBuilder:
        """Add a load from or a store to remote memory. Raises ScenarioError: a wrong value."""
        return self._add(Memory, load=load, store=store, ranks=ranks, **keys)

    def build(self) -> Workload:
        """The traces of all ranks. Raises ScenarioError: no item; a rank, group, name or root that does not exist."""
        if not self.items:
            raise ScenarioError("workload", "has no items", 'add e.g. .all_reduce("64 MiB")')
        return generate(self.items, self.ranks, self.groups, name=self.name)

    def _add(self, kind: type[Item], **keys: Any) -> WorkloadBuilder:
        try:
            self.items.append(kind(**keys))
        except ScenarioError as error:
            place = f"workload[{len(self.items)}]"
            raise ScenarioError(f"{place}.{error.place}".rstrip("."), error.problem, error.remedy) from None
        return self

    def _facts(self) -> tuple[str, dict[str, str | int]]:
        return self.name, {"ranks": self.ranks, "items": len(self.items), "groups": len(self.groups)}


def _listed(name: str, groups: Sequence[Sequence[int]]) -> Sequence[Sequence[int]]:
    if not groups or not all(isinstance(members, Sequence) for members in groups):
        raise ScenarioError(f"groups.{name}", "is not a list of lists of ranks", "write e.g. [[0, 1], [2, 3]]")
    return groups
