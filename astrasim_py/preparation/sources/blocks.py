"""Algorithms of an all_to_all of unequal blocks: direct, or synthesized."""

from collections.abc import Sequence
from dataclasses import dataclass, replace
from math import gcd

import numpy as np

from astrasim_py.builders.draft import Draft, finish
from astrasim_py.chakra.workload import Workload
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.collectives.collective import CUSTOM
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.preparation.sources.source import ScenarioSource
from astrasim_py.preparation.sources.synthesized import Synthesized
from astrasim_py.preparation.workloads.blocks import blocks_of, label_of
from astrasim_py.preparation.workloads.section import JobSection
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmCall, Case, When
from astrasim_py.scenario.algorithm_models import Builder
from astrasim_py.synthesis.emit.emitter import ChunkLayout
from astrasim_py.synthesis.model.demand import Demand
from astrasim_py.workload.blocks import BlockSizes
from astrasim_py.workload.items import AllToAll

_KIND = "all_to_all"


def direct(blocks: BlockSizes) -> Algorithm:
    """Every rank sends its blocks to the others at once, in the order r+1, r+2, …, as the builder `direct` does.

    `blocks`: bytes from a to b at [a][b]; blocks of a rank for itself do not move. Raises AlgorithmError: more units
    than an algorithm can have.
    """
    n = len(blocks)
    unit = gcd(*(size for a, row in enumerate(blocks) for b, size in enumerate(row) if a != b))
    demand = Demand.blocks(blocks, unit=max(unit, 1))
    layout = ChunkLayout.of(demand)
    source, target = demand.origin.astype(np.int64), demand.targets.astype(np.int64)
    draft = Draft(n, layout.chunks)
    draft.recv(
        rank=target, peer=source, tag=0, idx=layout.sent, cnt=layout.covers, dst=(Buffer.OUTPUT, layout.received),
        order=(target - source) % n,
    )  # fmt: skip
    draft.send(
        rank=source, peer=target, tag=0, idx=layout.sent, cnt=layout.covers, src=(Buffer.INPUT, layout.sent),
        order=n + (target - source) % n,
    )  # fmt: skip
    return replace(finish(draft, "direct", CUSTOM, in_place=False), contract=layout.contract(demand))


@dataclass(frozen=True, eq=False)
class Blocks:
    """The algorithms of an item, by the cases of all_to_all with their sources; direct where there are none."""

    blocks: BlockSizes
    cases: Sequence[tuple[Case, ScenarioSource]]
    chosen: dict[str, bool]  # place of a case → whether it carries out a call
    place: str
    group: str
    by_placement: bool = True

    def for_call(self, call: AlgorithmCall) -> Algorithm:
        for case, source in self.cases:
            if case.holds(call, self.group, -1):
                if case.place:
                    self.chosen[case.place] = True
                return self._made(source, call)
        if self.cases:
            problem = f"no case of algorithms.{_KIND} holds"
            raise AlgorithmError(self.place, problem, "add a last case without `when`")
        return direct(self.blocks).with_verdict(True)

    def reaches(self, npus: tuple[int, ...]) -> bool:
        return False

    def _made(self, source: ScenarioSource, call: AlgorithmCall) -> Algorithm:
        spec = source.spec
        if isinstance(source, Synthesized):
            return source.for_blocks(call, self.blocks)
        if isinstance(spec, Builder) and spec.builder == "direct" and not spec.options:
            return source.checked(direct(self.blocks), CUSTOM, call.ranks, 0)
        named = (
            f"{spec.builder} with options" if isinstance(spec, Builder) and spec.builder == "direct" else source.name
        )
        problem = f"{named} serves blocks of one size, and {self.place} has unequal ones"
        raise AlgorithmError(source.place, problem, "write direct, or synthesize: {chunks: 1}")


def block_cases(
    job: JobSection, workload: Workload, cases: Sequence[tuple[Case, ScenarioSource]], chosen: dict[str, bool]
) -> list[Case]:
    """A case of custom collectives for each item of unequal blocks.

    `workload`: of the job. `cases`: of all_to_all, with their sources. `chosen`: by place of a case, whether it carries
    out a call; it is written when a call asks.
    """
    found = []
    for number, item in enumerate(job.spec.workload):
        body, label = item.body, label_of(number)
        if isinstance(body, AllToAll) and body.blocks is not None:
            members = workload.groups.get(label) or workload.groups[f"{label}.0"]
            group = body.group if isinstance(body.group, str) else "world"
            source = Blocks(
                blocks=blocks_of(job, number, body, len(members)),
                cases=cases,
                chosen=chosen,
                place=job.at(f"workload[{number}].all_to_all.blocks"),
                group=group,
            )
            found.append(Case(source=source, when=When(group=label)))
    return found
