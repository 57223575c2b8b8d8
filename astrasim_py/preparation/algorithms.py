"""The algorithms of a job: where each comes from is decided once, by what the scenario writes."""

from collections.abc import Callable
from typing import Any

from astrasim_py.builders.registry import BUILDERS
from astrasim_py.chakra.workload import Workload
from astrasim_py.collectives.collective import CUSTOM
from astrasim_py.core.by_need import load
from astrasim_py.core.choices import LIBRARIES
from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.fields import did_you_mean
from astrasim_py.core.notes import Notes
from astrasim_py.preparation.inputs import Preparation
from astrasim_py.preparation.sources.built import default_built
from astrasim_py.preparation.sources.source import ScenarioSource
from astrasim_py.preparation.workloads.section import JobSection
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmSource, AlgorithmTable, Case, When
from astrasim_py.scenario.algorithm_models import (
    AlgorithmBase,
    AlgorithmByDimension,
    AlgorithmCode,
    AlgorithmFile,
    AlgorithmSynthesis,
    Builder,
)
from astrasim_py.scenario.workload_models import ModelWorkload
from astrasim_py.topology.model import Topology

_SOURCES: dict[type[AlgorithmBase], str] = {
    Builder: "astrasim_py.preparation.sources.built:Built",
    AlgorithmFile: "astrasim_py.preparation.sources.from_file:FromFile",
    AlgorithmCode: "astrasim_py.preparation.sources.from_code:FromCode",
    AlgorithmSynthesis: "astrasim_py.preparation.sources.synthesized:Synthesized",
    AlgorithmByDimension: "astrasim_py.preparation.sources.dimensions:Dimensions",
}
_LIBRARY = "astrasim_py.preparation.sources.by_library:ByLibrary"
_PACKAGE = "astrasim_py.preparation.sources.from_code:FromPackage"


def source_of(run: Preparation, spec: AlgorithmBase, topology: Topology, place: str, notes: Notes) -> ScenarioSource:
    """The source of a case; its class is imported now."""
    home = _SOURCES[type(spec)]
    if isinstance(spec, AlgorithmFile) and spec.file.endswith(".json") and spec.file not in run.given:
        home = "astrasim_py.preparation.sources.from_plan:FromPlan"
    if isinstance(spec, Builder) and spec.builder not in BUILDERS:
        home = _LIBRARY if spec.builder in LIBRARIES else _PACKAGE
    source: ScenarioSource = load(home)(run, spec, topology, place, notes)
    return source


def algorithms_of(
    run: Preparation, section: JobSection, workload: Workload
) -> tuple[AlgorithmTable, dict[Case, ScenarioSource]]:
    """The algorithm table of a job, and the sources of its cases; those of the scenario where the job has none."""
    job, key, topology = section.spec, section.key, section.topology
    cases: dict[str, list[Case]] = {}
    sources: dict[Case, ScenarioSource] = {}
    notes = Notes()
    for collective, listed in {**run.spec.algorithms, **job.algorithms}.items():
        below = key if collective in job.algorithms else ""
        for i, spec in enumerate(listed):
            place = run.at(below, f"algorithms.{collective}{f'[{i}]' if len(listed) > 1 else ''}")
            _check_protocol(run, spec, f"{place}.protocol")
            source = source_of(run, spec, topology, place, notes)
            note_place = place if spec.when is not None else ""  # a last case is often there in case of need
            case = Case(source=source, when=spec.when or When(), place=note_place)
            cases.setdefault(collective, []).append(case)
            sources[case] = source
    if not isinstance(job.workload, tuple) or not any(getattr(item.body, "blocks", None) for item in job.workload):
        return AlgorithmTable(cases, _default(job, topology), notes), sources
    # Unequal blocks are custom collectives, which the cases of all_to_all carry out.
    chosen: dict[str, bool] = {}
    listed_cases = [(case, sources[case]) for case in cases.get("all_to_all", ())]
    blocks = load("astrasim_py.preparation.sources.blocks:block_cases")(section, workload, listed_cases, chosen)
    table = AlgorithmTable({**cases, CUSTOM: [*blocks, *cases.get(CUSTOM, ())]}, default_built, notes)
    chosen.update(table.places)
    table.places = chosen
    return table, sources


def _default(job: Any, topology: Topology) -> Callable[[str, int, int], Algorithm] | AlgorithmSource:
    """The algorithms of collectives for which a job names none: of models those of a library."""
    if not isinstance(job.workload, ModelWorkload):
        return default_built
    rings: AlgorithmSource = load("astrasim_py.preparation.sources.library_rings:LibraryRings")(topology)
    return rings


def _check_protocol(run: Preparation, spec: AlgorithmBase, place: str) -> None:
    """Raise ScenarioError: a protocol that the network of the point does not have; warn where none plays a role."""
    network, protocol = run.network, spec.protocol
    if protocol is None:
        return
    values = {"network.protocol": network.protocol, "network.msccl.protocol": network.msccl and network.msccl.protocol}
    for key, value in values.items():
        if value not in (None, "fastest"):
            raise ScenarioError(place, f"{protocol}, beside {key}: {value}, which holds for all", "drop one of them")
    profile = network.profile
    if profile is not None:
        names_in_profile = dict.fromkeys((*profile.protocols, *(profile.programs or ())))
        if protocol not in names_in_profile:
            raise ScenarioError(place, f"the profile has no {protocol}", did_you_mean(protocol, names_in_profile))
    elif network.msccl is None:
        run.notes.warnings.append(f"{place}: makes no difference without network.profile or network.msccl")
