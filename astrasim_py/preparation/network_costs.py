"""What collectives of a training take with the algorithms of its scenario, for closed forms."""

from collections.abc import Sequence
from dataclasses import replace

from astrasim_py.chakra.workload import Workload
from astrasim_py.core.choices import BY_DIMENSION
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.core.notes import Notes
from astrasim_py.preparation.algorithms import algorithms_of
from astrasim_py.preparation.sources.library_rings import LibraryRings
from astrasim_py.preparation.training_costs import TrainingCosts
from astrasim_py.preparation.workloads.section import JobSection
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.selection import AlgorithmCall
from astrasim_py.scenario.algorithm_models import Builder
from astrasim_py.topology.model import Topology
from astrasim_py.training.network import LARGE, NetworkCosts, Select


def network_costs(
    topology: Topology, select: Select, costs: TrainingCosts, npus: Sequence[int] | None = None
) -> NetworkCosts:
    """Times of collectives on links at the shares that the software reaches. `npus`: of the ranks, all by default."""
    constants = costs.software.constants
    return NetworkCosts(topology, select, near=float(constants.nvlink), far=float(constants.nic), npus=npus)


def select_of(job: JobSection) -> Select:
    """The algorithms that a job's collectives have: those of its scenario, else those of a library.

    Conditions on sizes are asked for a large message; what is synthesized, or goes by dimension, or comes from a file,
    is priced as where nothing is written.
    """
    apart = replace(job.run, notes=Notes())  # the job's own table warns
    table, _ = algorithms_of(apart, replace(job, run=apart), Workload((), {}))
    algorithms = {**job.run.spec.algorithms, **job.spec.algorithms}
    built = {name for name, listed in algorithms.items() if all(isinstance(case, Builder) for case in listed)}
    rings = LibraryRings(job.topology)

    def select(collective: str, role: str, npus: tuple[int, ...]) -> Algorithm:
        try:
            if collective in built & set(BY_DIMENSION):
                return table.select(collective, LARGE, len(npus), f"{role}.0", npus=npus)
        except AlgorithmError:  # its simulation says so
            pass
        return rings.for_call(AlgorithmCall(collective, len(npus), npus=npus))

    return select
