"""What lies beside an optimized scenario: the algorithms of its calls as files, and its traces with these inlined."""

from collections.abc import Iterator, Mapping

from astrasim_py.chakra.et_io import encode_trace
from astrasim_py.chakra.groups import groups_json
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import AstraError
from astrasim_py.core.units import number_of
from astrasim_py.optimizer.calls import role_of
from astrasim_py.optimizer.synthesized import file_name
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.files import encode_npz
from astrasim_py.system.inlining import inline
from astrasim_py.system.plan import Plan
from astrasim_py.system.problem import Problem

#: Folder of the traces with inlined algorithms.
INLINED = "inlined"
#: Most messages of an algorithm that is written, most such algorithms, and most nodes of inlined traces (300 B each).
_MESSAGES, _ALGORITHMS, _NODES = 2**18, 64, 300_000


def algorithms_of(plan: Plan, named: Mapping[str, Algorithm]) -> tuple[dict[str, tuple[Algorithm, str]], list[str]]:
    """The algorithms that carry out the calls of a plan, each with what it does in words, by name of its file; and what
    is left out. `named`: those that the scenario names, by file."""
    names = {algorithm.digest(): name for name, algorithm in named.items()}
    files: dict[str, tuple[Algorithm, list[str]]] = {}
    notes: dict[str, None] = {}
    for instance in plan.instances.values:
        if len(instance.members) < 2:
            continue
        role = role_of(instance.group)
        for algorithm in instance.algorithms:
            words = [instance.type, *([f"of {role}"] if role else []), f"over {len(instance.members)} ranks"]
            if algorithm.messages > _MESSAGES:
                much = f"{number_of(algorithm.messages, 'message')}, more than {_MESSAGES:,}"
                notes[f"No file of {algorithm.name} for {' '.join(words)}: it has {much}"] = None
                continue
            name = names.setdefault(algorithm.digest(), file_name(algorithm, role))
            if name not in files and len(files) == _ALGORITHMS:
                notes[f"Not all algorithms are there as files: there are more than {_ALGORITHMS}"] = None
                continue
            _, uses = files.setdefault(name, (algorithm, []))
            uses += [" ".join(words)] if " ".join(words) not in uses else []
    return {name: (algorithm, ", ".join(uses)) for name, (algorithm, uses) in files.items()}, list(notes)


def inlined_files(problem: Problem, plan: Plan) -> tuple[dict[str, bytes], list[str]]:
    """Files of the traces of all jobs with the algorithms of their calls inlined, and lines on what is left out."""
    files: dict[str, bytes] = {}
    notes: list[str] = []
    for number, job in enumerate(problem.jobs):
        heading = f"No inlined traces of {job.name}" if len(problem.jobs) > 1 else "No inlined traces"
        if plan.row_count > _NODES:
            notes.append(f"{heading}: {number_of(plan.row_count, 'node')}, more than {_NODES:,}")
            continue
        try:
            workload, losses, *_ = inline(problem, number)
        except AstraError as error:
            notes.append(f"{heading}: {error.place}: {error.problem}")
            continue
        notes += [f"The inlined traces do not say {loss}" for loss in losses]
        files |= trace_files(f"{INLINED}/{job.name}", workload)
    return files, notes


def algorithm_bytes(algorithms: Mapping[str, tuple[Algorithm, str]]) -> Iterator[tuple[str, bytes]]:
    """Files of algorithms."""
    for name, (algorithm, _) in algorithms.items():
        yield name, encode_npz(algorithm, name)


def trace_files(prefix: str, workload: Workload) -> Iterator[tuple[str, bytes]]:
    """Files of the traces and the groups of a workload."""
    for rank in range(workload.ranks):
        yield f"{prefix}.{rank}.et", encode_trace(workload.trace(rank))
    yield f"{prefix}.groups.json", groups_json(workload.groups)
