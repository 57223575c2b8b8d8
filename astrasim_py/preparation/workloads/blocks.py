"""Items with blocks of unequal sizes: custom collectives of groups of their own, each with its algorithm."""

from collections.abc import Sequence

from astrasim_py.collectives.collective import CUSTOM
from astrasim_py.core.choices import BLOCKS
from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.fields import FileText
from astrasim_py.preparation.workloads.section import JobSection
from astrasim_py.workload.blocks import BlockSizes, buffer_of, read_blocks
from astrasim_py.workload.items import AllToAll, Collective, Item

Groups = dict[str, tuple[tuple[int, ...], ...]]


def label_of(number: int) -> str:
    """The group of the item with that number."""
    return f"{BLOCKS}{number}"


def with_blocks(job: JobSection, bodies: Sequence[Item], ranks: int, groups: Groups) -> list[Item]:
    """The items with custom collectives in place of all_to_alls of blocks; their groups are added.

    Raises ScenarioError: sizes that are none, or not of as many ranks as the group has.
    """
    items: list[Item] = []
    for number, body in enumerate(bodies):
        if not isinstance(body, AllToAll) or body.blocks is None:
            items.append(body)
            continue
        members = members_of_item(body, ranks, groups)
        sizes = {len(group) for group in members}
        if len(sizes) != 1:
            raise ScenarioError(
                job.at(f"workload[{number}]"), "its groups are of several sizes", "write an item for each"
            )
        blocks = blocks_of(job, number, body, sizes.pop())
        groups[label_of(number)] = members
        custom = Collective(
            type=CUSTOM, size=buffer_of(blocks), group=label_of(number),
            name=body.name, after=body.after, repeat=body.repeat,
        )  # fmt: skip
        items.append(custom)
    return items


def members_of_item(body: Collective, ranks: int, groups: Groups) -> tuple[tuple[int, ...], ...]:
    """The groups in which an item runs."""
    if isinstance(body.group, tuple):
        return (body.group,)
    return groups.get(body.group or "", (tuple(range(ranks)),))


def blocks_of(job: JobSection, number: int, body: AllToAll, members: int) -> BlockSizes:
    """The sizes of an item. Raises ScenarioError, as `with_blocks`."""
    place = job.at(f"workload[{number}].all_to_all.blocks")
    if isinstance(body.blocks, FileText):
        return read_blocks(job.run.path(body.blocks, place), members, place)
    blocks: BlockSizes = body.blocks or ()
    if len(blocks) != members:
        problem = f"{len(blocks)} rows of sizes, and the group has {members} ranks"
        raise ScenarioError(place, problem, "write a row per sender, with a size per receiver")
    return blocks
