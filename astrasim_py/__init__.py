"""astrasim_py: simulate distributed-ML communication.

Run a scenario and look at it:

>>> import astrasim_py as ap
>>> result = ap.run("scenarios/ring_vs_torus.yaml", out="results")       # doctest: +SKIP
>>> result.rows[0]["time_ns"]                                            # doctest: +SKIP

Or put a problem together:

>>> topology = ap.build_topology(shape="ring", npus=4, bandwidth="50 GB/s", latency="500 ns")
>>> problem = ap.collective("all_reduce", "1 MiB", topology)
>>> records = ap.simulate(problem)
>>> records.makespan                                                     # picoseconds
34457280
>>> records.link["bytes"].tolist()
[1572864, 1572864, 1572864, 1572864]

``records.tables()`` holds columns; ``records.link.to_dataframe()`` makes a pandas DataFrame of a table. Names are
imported when they are used: ``import astrasim_py`` costs nothing.
"""

import importlib
from typing import Any

from astrasim_py.core.above import HOMES

#: Public name → module; module:name where it is another there; "module:" for the module itself.
_HOME = {
    "Algorithm": "astrasim_py.program.algorithm",
    "AstraError": "astrasim_py.core.errors",
    "Contract": "astrasim_py.collectives.contract",
    "Problem": "astrasim_py.system.problem",
    "Records": "astrasim_py.core.records",
    "Topology": "astrasim_py.topology.model",
    "Workload": "astrasim_py.chakra.workload",
    "algorithm": "astrasim_py.builders.dsl",
    "build_algorithm": "astrasim_py.builders.registry:build",
    "build_topology": "astrasim_py.api",
    "collective": "astrasim_py.api",
    "compare": "astrasim_py.inspection.compare",
    "compose": "astrasim_py.builders.compose",
    "convert_pytorch": "astrasim_py.pytorch.convert:convert",
    "explain": "astrasim_py.inspection.look",
    "expand": "astrasim_py.scenario.expand",
    "load_scenario": "astrasim_py.scenario.load",
    "plot": "astrasim_py.inspection.look",
    "prepare": "astrasim_py.api",
    "problem": "astrasim_py.api",
    "read_algorithm": "astrasim_py.msccl.to_traces",
    "read_contract": "astrasim_py.collectives.contract",
    "read_workload": "astrasim_py.chakra.workload",
    "run": "astrasim_py.api",
    "simulate": "astrasim_py.api",
    "split": "astrasim_py.builders.split",
    "verify": "astrasim_py.verification.verifier",
    "workload": "astrasim_py.workload:",  # the package, which is a function, too
    "write_algorithm": "astrasim_py.api",
}

__all__ = ["__version__", *_HOME]
HOMES |= {name: _HOME[name] for name in ("compose", "split")}


def __getattr__(name: str) -> Any:
    if name == "__version__":
        from importlib.metadata import version

        return version("astrasim-py")
    if name not in _HOME:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    module, colon, there = _HOME[name].partition(":")
    home = importlib.import_module(module)
    return home if colon and not there else getattr(home, there or name)


def __dir__() -> list[str]:
    return sorted([*globals(), *__all__])
