"""Models of the groups of a job, and of its slow or late ranks."""

from collections.abc import Mapping
from typing import Annotated

from pydantic import (
    AfterValidator,
    BeforeValidator,
    Discriminator,
    Field,
    Tag,
)

from astrasim_py.core.fields import (
    Count,
    Ranks,
    Speed,
    Time,
    by_rank,
    wrong,
)
from astrasim_py.core.strict_model import StrictModel, example


class Partition(StrictModel):
    """All ranks cut into groups of equal size: members are `stride` apart."""

    size: Count = example("8")
    stride: Count = 1


def _group_tag(value: object) -> str:
    if isinstance(value, Mapping):
        return "<partition>"
    several = isinstance(value, list | tuple) and value and all(isinstance(v, list | tuple) for v in value)
    return "<several>" if several else "<one>"


def _disjoint(value: tuple[tuple[int, ...], ...]) -> tuple[tuple[int, ...], ...]:
    index_of: dict[int, int] = {}
    for i, members in enumerate(value):
        for rank in members:
            if rank in index_of:
                raise wrong(f"rank {rank} is in two groups of one name", "keep it in one", (i,))
            index_of[rank] = i
    return value


#: Ranks of a communicator; or several disjoint communicators under one name.
GroupSpec = Annotated[
    Annotated[Ranks, Tag("<one>")]
    | Annotated[tuple[Ranks, ...], AfterValidator(_disjoint), Tag("<several>")]
    | Annotated[Partition, Tag("<partition>")],
    Discriminator(_group_tag),
]


def _by_rank(value: object) -> object:
    return by_rank(value) if isinstance(value, Mapping) else value


class Stragglers(StrictModel):
    """Ranks that are slow or late: ``{3: 0.5}``, ``{"0-7": 5 us}``."""

    compute_speed: Annotated[dict[int, Speed], BeforeValidator(_by_rank)] = Field(
        default={}, description="rank → speed; 0.5 takes twice as long"
    )
    start_delay: Annotated[dict[int, Time], BeforeValidator(_by_rank)] = Field(
        default={}, description="rank → time before it begins"
    )
