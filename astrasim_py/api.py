"""The functions of the Python interface that put several modules together."""

from __future__ import annotations

import os
import warnings
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypedDict, Unpack

from astrasim_py.chakra.et_io import write_prefix
from astrasim_py.core.choices import AUTO
from astrasim_py.core.errors import UsageError
from astrasim_py.core.fields import did_you_mean
from astrasim_py.core.notes import Notes
from astrasim_py.core.records import Records
from astrasim_py.core.units import parse_size
from astrasim_py.engine.simulation import plan_for
from astrasim_py.engine.simulation import simulate as run_plan
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.files import write_npz
from astrasim_py.program.interchange import algorithm_traces
from astrasim_py.system.plan import Plan
from astrasim_py.system.plan_notes import plan_notes, source_notes
from astrasim_py.system.problem import Problem
from astrasim_py.topology import from_keys
from astrasim_py.topology.model import Topology

if TYPE_CHECKING:
    from pathlib import Path

    from astrasim_py.core.point_names import PointName
    from astrasim_py.runs.plan import PointKeys
    from astrasim_py.runs.progress import Progress
    from astrasim_py.runs.sweep import RunResult
    from astrasim_py.scenario.expand import Point
    from astrasim_py.scenario.load import LoadedScenario
    from astrasim_py.system.machine_models import Limits


def run(
    scenario: str | os.PathLike[str] | Mapping[str, object] | LoadedScenario,
    *,
    overrides: Sequence[str] | Mapping[str, object] = (),
    out: str | os.PathLike[str] = "results",
    jobs: int | None = 1,
    cluster: str | None = None,
    points: tuple[int, int] | None = None,
    fresh: bool = False,
    figures: bool = True,
    strict: bool = False,
    progress: Progress | None = None,
    **options: Unpack[PointKeys],
) -> RunResult:
    """Run a scenario: every point is simulated, or reused if its result is there; tables and figures are written.

    Parameters
    ----------
    scenario : path, mapping or LoadedScenario
        A YAML file, of all points or of those of ``"x.yaml@size=1 MiB,topology=ring"``; or the same keys and values as
        a dict; files that a dict names are looked up in the current folder.
    overrides : mapping, or sequence of str
        Key → value, ``{"topologies.ring.npus": 16}``; or ``"KEY=VALUE"``, as with ``--set``.
    out : path
        Folder of all results.
    jobs : int, optional
        Worker processes; 1 runs in this process, None means one per core.
    cluster : str, optional
        Address of a Dask scheduler whose workers compute the points.
    points : tuple of int, optional
        ``(i, n)``: only the i-th of n shares of the points.
    fresh : bool
        Compute finished points again.
    figures : bool
        Draw the scenario's figures.
    strict : bool
        A point with a warning has failed.
    progress : Progress, optional
        Takes what is done; by default a line on a terminal or in a notebook.
    **options
        ``level``, ``engine``, ``fold``, ``max_events`` and ``max_sim_time_ps``, where they differ from the scenario's;
        ``in_full``, ``timeline`` and ``collectives``, as in `astrasim_py.results.store.RunOptions`.

    Returns
    -------
    RunResult
        With ``rows``, one for each point: ``row.time_ns`` is ``row["time_ns"]``; ``to_dataframe()`` makes a pandas
        DataFrame of them.

    Raises
    ------
    AstraError
        The scenario is wrong, or the output cannot be written.
    """
    from astrasim_py.runs.plan import options_for
    from astrasim_py.runs.progress import on_terminal
    from astrasim_py.runs.sweep import run_scenario
    from astrasim_py.scenario.load import LoadedScenario, load_scenario, with_overrides

    names: Sequence[PointName] = ()
    if isinstance(scenario, LoadedScenario):
        loaded = with_overrides(scenario, overrides)
    elif isinstance(scenario, str) and "@" in scenario:
        from astrasim_py.inspection.point_choice import point_name

        names = [point_name(scenario, out)]
        loaded = load_scenario(names[0].name, overrides)
    else:
        loaded = load_scenario(scenario, overrides)
    return run_scenario(
        loaded,
        options_for(loaded, **options),
        out=out,
        jobs=jobs,
        cluster=cluster,
        points=points,
        names=names,
        fresh=fresh,
        figures=figures,
        strict=strict,
        progress=progress or on_terminal(loaded.name),
    )


def prepare(
    point: Point,
    *,
    limits: Limits | None = None,
    kept: Path | None = None,
    given: Mapping[str, Algorithm] | None = None,
    warnings: list[str] | None = None,
    hints: list[str] | None = None,
) -> Problem:
    """Make the Problem of a point.

    What is wrong with files and algorithms without being an error is told by Python warnings.

    Parameters
    ----------
    point : Point
        One of those that `expand` makes.
    limits : Limits, optional
        Instead of those of the scenario.
    kept : Path, optional
        Folder of synthesized algorithms, beside the results.
    given : mapping of str to Algorithm, optional
        Algorithms by the names of files that need not be there yet.
    warnings, hints : list of str, optional
        Take the lines that are else warnings. What algorithms tell when calls ask for them, `simulate` says.

    Returns
    -------
    Problem

    Raises
    ------
    AstraError
        The point contradicts itself, or a file is wrong.
    """
    from astrasim_py.preparation.prepare import prepare

    prepared, notes = prepare(point, limits=limits, kept=kept, given=given), Notes()
    (notes.warnings if warnings is None else warnings).extend(prepared.notes.warnings)
    (notes.hints if hints is None else hints).extend(prepared.notes.hints)
    notes.warn()
    return prepared.problem


def simulate(problem: Problem | Plan, *, engine: str = AUTO, level: str = "links", fold: bool = False) -> Records:
    """Run a problem.

    Parameters
    ----------
    problem : Problem or Plan
        A Plan is run as it is; a Problem is planned first.
    engine : str
        ``simpy``, the reference; ``compiled``, which gives the same records; ``auto``, which picks the one that costs
        less (see `engine_for`); ``both``, which runs both and compares every record.
    level : str
        What to record: ``summary``, ``links``, ``nodes`` or ``messages``.
    fold : bool
        Simulate one rank for all, where they all do the same (see `astrasim_py.engine.fold`); level ``summary`` or
        ``links``. So little is left to simulate that SimPy does it, whatever the engine; with ``both`` all ranks are
        simulated as well, and every record compared.

    Returns
    -------
    Records
        Also when the run is stuck or reaches a limit: see `Records.outcome`. `Records.engine` says what ran.

    Raises
    ------
    TraceError, AlgorithmError, ScenarioError
        The problem cannot be run (found before running).
    SimulationError
        A matched send and receive of unequal bytes, or figures beyond 63 bits (found by running).
    UsageError
        Unknown engine or level; an engine that cannot run the problem (see `engine_for`).
    FoldError
        With `fold`: the ranks differ, or cannot be shown to be equal.
    InternalError
        With ``both``: the engines differ.
    """
    plan = problem if isinstance(problem, Plan) else plan_for(problem, engine, fold=fold)
    notes = source_notes(plan)
    notes.warnings += plan_notes(plan)
    notes.warn()
    records = run_plan(plan, engine=engine, level=level, fold=fold)
    from astrasim_py.runs.hints import hints

    for note in hints(plan, records):
        warnings.warn(note, stacklevel=2)
    return records


def build_topology(**keys: object) -> Topology:
    """Make a topology of the keys that a scenario would use.

    Parameters
    ----------
    **keys
        ``shape`` or ``preset``, and the keys of that shape, which may be one of another package; quantities are text
        with units.

    Returns
    -------
    Topology

    Raises
    ------
    TopologyError
        A wrong key or value, or a network that does not connect its NPUs.

    Examples
    --------
    >>> build_topology(shape="torus", dims=[4, 4], bandwidth="50 GB/s", latency="500 ns").links
    64
    """

    return from_keys.build(keys, "build_topology", written=True)


class WriteKeys(TypedDict, total=False):
    """Options of `write_algorithm`; sizes are bytes, or text such as ``"1 MiB"``."""

    dialect: str
    protocol: str
    npus_per_node: int | None
    min_bytes: int | str | None
    max_bytes: int | str | None
    size: int | str | None


def write_algorithm(path: str | os.PathLike[str], algorithm: Algorithm, **options: Unpack[WriteKeys]) -> None:
    """Write an algorithm; the name decides the format, as for ``convert``.

    Parameters
    ----------
    path : path
        ``X.xml`` for MSCCL-IR, ``X.json`` for an MSCCL++ execution plan, ``X.npz`` for columns, else the prefix of
        ``.et`` files, one per rank.
    algorithm : Algorithm
    **options
        Of MSCCL-IR those of `astrasim_py.msccl.xml_writer.write_msccl`: ``dialect``, ``protocol``, ``min_bytes``,
        ``max_bytes``; of plans those of `astrasim_py.mscclpp.writer.write_plan`. Of ``.et`` ``size``: full buffer for
        which absolute sizes are stated, too. Sizes are bytes, or text such as ``"1 MiB"``.

    Raises
    ------
    AlgorithmError
        It cannot be expressed in the format.
    OutputError
        A file that cannot be written.
    UsageError
        An option that the format does not have, or a size that is none.
    """
    kind = os.path.splitext(os.fspath(path))[1]
    of_plans = ("protocol", "npus_per_node", "min_bytes", "max_bytes")
    of_programs = ("dialect", "protocol", "min_bytes", "max_bytes")
    names = {".xml": of_programs, ".json": of_plans, ".npz": ()}.get(kind, ("size",))
    values: dict[str, Any] = {**options}
    for name, value in values.items():
        if name not in names:
            raise UsageError(f"write_algorithm {os.fspath(path)}", f"has no option {name}", did_you_mean(name, names))
        if name in ("size", "min_bytes", "max_bytes") and not (value is None or type(value) is int):
            values[name] = parse_size(value, name)
    if kind == ".xml":
        from astrasim_py.msccl.xml_writer import write_msccl

        write_msccl(path, algorithm, **values)
    elif kind == ".json":
        from astrasim_py.mscclpp.writer import write_plan

        write_plan(path, algorithm, **values)
    elif kind == ".npz":
        write_npz(path, algorithm, **values)
    else:
        write_prefix(path, algorithm_traces(algorithm, **values))
