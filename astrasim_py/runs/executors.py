"""Who computes the points of a run: this process, workers of this machine, or a cluster."""

from collections.abc import Generator, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Protocol, TypeAlias

from astrasim_py.core import compiling
from astrasim_py.core.errors import UsageError
from astrasim_py.engine.auto import is_compiled
from astrasim_py.results import store
from astrasim_py.runs.task import Result, Task, run_task, run_task_apart

if TYPE_CHECKING:
    from astrasim_py.runs.pool import Killed

#: Results with the places of their tasks, in the order in which they end.
Results: TypeAlias = "Generator[tuple[int, Result | Killed], None, None]"

#: A sweep of so many points per worker is begun without workers: they cost 2 CPU seconds each before their first point.
_MANY = 8
#: CPU seconds from which on workers pay: those of one point, and those of all points that are left.
_LONG_S, _REST_S = 4.0, 8.0


class Executor(Protocol):
    """Computes tasks and stores their points. Closing what `map` gives stops it."""

    def map(self, tasks: Sequence[Task]) -> Results: ...


@dataclass(frozen=True)
class Local:
    """This machine. `jobs`: worker processes; 1: this process alone; None: one per core, where they pay. `folder`: of
    the scenario's results.
    """

    jobs: int | None
    folder: Path

    def map(self, tasks: Sequence[Task]) -> Results:
        if not tasks:
            return
        workers = 1 if self.jobs == 1 else len(tasks)
        if workers > 1:
            from astrasim_py.runs.pool import cores

            workers = min(self.jobs or cores(), workers)
        tasks = [replace(task, points=-(-len(tasks) // workers)) for task in tasks]
        count = 0
        # While a kernel is compiled, workers start and compute.
        if workers == 1 or (self.jobs is None and len(tasks) >= _MANY * workers and is_compiled()):
            for result in self._here(tasks, workers):
                yield count, result
                count += 1
        if count < len(tasks):
            from astrasim_py.runs.pool import run_tasks

            with store.scratch(self.folder) as beside:
                rest = [replace(task, beside=beside) for task in tasks[count:]]
                for number, from_worker in run_tasks(run_task_apart, rest, min(workers, len(rest))):
                    yield count + number, from_worker

    def _here(self, tasks: Sequence[Task], workers: int) -> Generator[Result, None, None]:
        """Results of this process, up to where `workers` of them pay."""
        begin, first_s = compiling.cpu_s(), 0.0
        for count, task in enumerate(tasks, 1):
            yield run_task(task)
            spent_s = compiling.cpu_s() - begin
            first_s = first_s or spent_s  # it reads what the others use, too
            rest_s = (spent_s - first_s) / max(count - 1, 1) * (len(tasks) - count)
            if workers > 1 and (first_s > _LONG_S or rest_s > _REST_S):
                return


@dataclass(frozen=True)
class OnCluster:
    """Workers of a Dask cluster. `address`: of its scheduler."""

    address: str
    folder: Path

    def map(self, tasks: Sequence[Task]) -> Results:
        if tasks:
            from astrasim_py.runs.cluster import run_on_cluster

            yield from run_on_cluster([replace(task, points=len(tasks)) for task in tasks], self.address, self.folder)


def executor_of(jobs: int | None, cluster: str | None, folder: Path) -> Executor:
    """Who is asked for. Raises UsageError: fewer than one job, or what is no address of a cluster."""
    if jobs is not None and jobs < 1:
        raise UsageError("--jobs", f"{jobs} is less than 1", "write 1 or more")
    if cluster is None:
        return Local(jobs, folder)
    from astrasim_py.runs.cluster import check_address

    check_address(cluster)
    return OnCluster(cluster, folder)
