"""The functions of the Python interface that put several modules together."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING, Any

from astrasim_py.builders.registry import build, default_algorithm
from astrasim_py.builders.switch_trees import IN_NETWORK, switches_above
from astrasim_py.chakra.et_io import write_prefix
from astrasim_py.collectives.collective import collective_name, promise_of
from astrasim_py.core.choices import LIBRARIES
from astrasim_py.core.units import parse_size
from astrasim_py.engine.choose import by_library
from astrasim_py.engine.simulation import simulate
from astrasim_py.msccl.xml_writer import write_msccl
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.files import write_npz
from astrasim_py.program.interchange import algorithm_traces
from astrasim_py.program.selection import AlgorithmTable, Case
from astrasim_py.system.machine_models import NetworkModel
from astrasim_py.system.problem import Job, Problem
from astrasim_py.topology import from_keys
from astrasim_py.topology.model import Topology
from astrasim_py.topology.placement import placement
from astrasim_py.workload.items import Collective
from astrasim_py.workload.microbenchmarks import generate

if TYPE_CHECKING:
    from astrasim_py.scenario.load import LoadedScenario
    from astrasim_py.study.sweep import RunResult


def run(
    scenario: str | os.PathLike | Mapping | LoadedScenario,
    *,
    overrides: Sequence[str] | Mapping[str, Any] = (),
    **options: Any,
) -> RunResult:
    """Run a scenario: every point is simulated, or reused if its result is there; tables and figures are written.

    Parameters
    ----------
    scenario : path, mapping or LoadedScenario
        A YAML file, or the same keys and values as a dict; files that a dict names are looked up in the current folder.
    overrides : mapping, or sequence of str
        Key → value, ``{"topologies.ring.npus": 16}``; or ``"KEY=VALUE"``, as with ``--set``.
    **options
        Of `astrasim_py.study.sweep.run_scenario`: ``out``, ``jobs``, ``fresh``, ``level``, ``engine`` …

    Returns
    -------
    RunResult
        With ``rows``, one dict per point; ``to_dataframe()`` makes a pandas DataFrame of them.

    Raises
    ------
    AstraError
        The scenario is wrong, or the output cannot be written.
    """
    from astrasim_py.scenario.load import LoadedScenario, load_scenario, with_overrides
    from astrasim_py.study.progress import on_terminal
    from astrasim_py.study.sweep import run_scenario

    loaded = isinstance(scenario, LoadedScenario)
    scenario = with_overrides(scenario, overrides) if loaded else load_scenario(scenario, overrides)
    options.setdefault("progress", on_terminal(scenario.name))
    return run_scenario(scenario, **options)


def build_topology(**keys: Any) -> Topology:
    """Make a topology of the keys that a scenario would use.

    Parameters
    ----------
    **keys
        ``shape`` or ``preset``, and the keys of that shape; quantities are text with units.

    Returns
    -------
    Topology

    Raises
    ------
    TopologyError

    Examples
    --------
    >>> build_topology(shape="torus", dims=[4, 4], bandwidth="50 GB/s", latency="500 ns").links
    64
    """

    return from_keys.build(keys, "build_topology", written=True)


def write_algorithm(path: str | os.PathLike, algorithm: Algorithm, **options: Any) -> None:
    """Write an algorithm; the name decides the format, as for ``convert``.

    Parameters
    ----------
    path : path
        ``X.xml`` for MSCCL-IR, ``X.npz`` for columns, else the prefix of ``.et`` files, one per rank.
    algorithm : Algorithm
    **options
        Of MSCCL-IR those of `astrasim_py.msccl.xml_writer.write_msccl`: ``dialect``, ``protocol``, ``min_bytes``,
        ``max_bytes``. Of ``.et`` ``size``: full buffer, bytes, for which absolute sizes are stated, too.

    Raises
    ------
    AlgorithmError
        It cannot be expressed in the format.
    OutputError
        A file that cannot be written.
    """
    if os.fspath(path).endswith(".xml"):
        write_msccl(path, algorithm, **options)
    elif os.fspath(path).endswith(".npz"):
        write_npz(path, algorithm, **options)
    else:
        write_prefix(path, algorithm_traces(algorithm, **options))


def collective(
    kind: str,
    size: int | str,
    topology: Topology,
    *,
    algorithm: Algorithm | str | None = None,
    root: int = 0,
    npus: Sequence[int] | None = None,
    **network: Any,
) -> Problem:
    """One collective, as a problem for `simulate`.

    Parameters
    ----------
    kind : str
        For example ``all_reduce``; or ``custom``, which needs an algorithm of yours.
    size : int or str
        Full buffer: bytes, or text with a unit.
    topology : Topology
    algorithm : Algorithm or str, optional
        An injected algorithm, or the name of a builder or a library (``nccl``); the builder's default otherwise.
    root : int
        For rooted collectives.
    npus : sequence of int, optional
        The group, rank by rank; all NPUs by default.
    **network
        Fields of `astrasim_py.system.machine_models.NetworkModel`: ``model`` (``cut_through``, ``store_and_forward`` or
        ``analytical``), ``link_busy``, ``msccl`` …

    Returns
    -------
    Problem

    Raises
    ------
    AstraError

    Examples
    --------
    >>> from astrasim_py import simulate
    >>> ring = build_topology(shape="ring", npus=4, bandwidth="50 GB/s", latency="500 ns")
    >>> simulate(collective("all_gather", "1 MiB", ring)).makespan
    17228640
    """

    kind = collective_name(kind, "collective")
    nbytes = parse_size(size, "collective") if isinstance(size, str) else int(size)

    def make(collective: str, ranks: int, root: int) -> Algorithm:
        if isinstance(algorithm, Algorithm):
            return algorithm
        rooted = {"root": root} if promise_of(collective).rooted else {}
        return build(algorithm or default_algorithm(collective), collective, ranks, **rooted)

    npus = placement(topology, "linear" if npus is None else list(npus))
    workload = generate([Collective(type=kind, size=nbytes, root=root)], len(npus), name=kind)
    machine = Problem(topology=topology, jobs=(), network=NetworkModel(**network))
    fit = partial(by_library, simulate, machine) if algorithm in LIBRARIES else None
    if algorithm in IN_NETWORK:

        def fit(collective: str, npus: tuple[int, ...], size: int, root: int) -> Algorithm:
            rooted = {"root": root} if promise_of(collective).rooted else {}
            return build(
                algorithm, collective, len(npus), **rooted,
                **switches_above(topology, npus, algorithm, collective, {}, size),
            )  # fmt: skip

    job = Job(workload=workload, placement=npus, algorithms=AlgorithmTable({kind: [Case(make=make, fit=fit)]}))
    return replace(machine, jobs=(job,))
