"""Workloads in files of other programs, which a reader of traces converts."""

from astrasim_py.chakra.workload import Workload
from astrasim_py.core.digest import digest
from astrasim_py.core.errors import ScenarioError, UsageError
from astrasim_py.core.fields import named_files
from astrasim_py.core.notes import Notes
from astrasim_py.preparation.inputs import WORKLOADS, files_of
from astrasim_py.preparation.workloads.section import JobSection
from astrasim_py.scenario.workload_models import ReaderWorkload
from astrasim_py.workload.trace_readers import convert, parsed_options


def recorded(job: JobSection) -> Workload:
    """The workload of a job that names recordings of PyTorch."""
    return _converted(job, job.spec.workload.pytorch.of_reader(), job.at("workload.pytorch"))


def read_by_name(job: JobSection) -> Workload:
    """The workload of a job that names a reader."""
    return _converted(job, job.spec.workload, job.at("workload"))


def _converted(job: JobSection, spec: ReaderWorkload, place: str) -> Workload:
    run, ranks = job.run, job.ranks
    paths = {option_path: str(run.path(name, place)) for option_path, name in named_files(spec.options)}
    files = [file for name in paths.values() for file in run.inside(files_of("", name), place)]
    options = {
        option: [paths.get((option, i), item) for i, item in enumerate(value)]
        if isinstance(value, list | tuple)
        else paths.get((option,), value)
        for option, value in spec.options.items()
    }

    def read() -> tuple[Workload, Notes]:
        try:
            conversion = convert(spec.reader, parsed_options(spec.reader, options), lambda text: None)
        except UsageError as error:
            raise ScenarioError(place, f"{error.place.lstrip('-')}: {error.problem}", error.remedy) from None
        if conversion.problems and not spec.partial:
            others = f", and {len(conversion.problems) - 1} more" if len(conversion.problems) > 1 else ""
            raise ScenarioError(place, f"{conversion.problems[0]}{others}", "record it again, or write partial: true")
        if ranks not in (None, conversion.workload.ranks):
            raise ScenarioError(place, f"is of {conversion.workload.ranks} ranks, not {ranks}", "drop `ranks`")
        return conversion.workload, Notes([*conversion.warnings, *conversion.problems])

    workload, notes = run.read_once(WORKLOADS, files, (spec.reader, spec.partial, ranks, digest(options)), read)
    source = next(iter(named_files(spec.options)), ((), spec.reader))[1]
    job.warn(f"{source}: {text}" for text in notes.warnings)
    return workload
