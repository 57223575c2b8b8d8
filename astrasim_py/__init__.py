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
imported when they are used: ``import astrasim_py`` costs nothing; ``__init__.pyi`` says where they stand.
"""

from functools import cache
from typing import Any


@cache
def _homes() -> dict[str, tuple[str, str]]:
    """Public name → its module, and its name there; read when one is first used."""
    import ast
    from pathlib import Path

    stub = ast.parse(Path(__file__).with_suffix(".pyi").read_text("utf-8"))
    imports = [(line.module or "", line.names) for line in stub.body if isinstance(line, ast.ImportFrom)]
    return {alias.asname or alias.name: (module, alias.name) for module, names in imports for alias in names}


def __getattr__(name: str) -> Any:
    if name == "__all__":
        return ["__version__", *_homes()]
    if name == "__version__":
        from importlib.metadata import version

        return version("astrasim-py")
    if name.startswith("__") or name not in _homes():
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from importlib import import_module

    module, there = _homes()[name]
    return getattr(import_module(module), there)


def __dir__() -> list[str]:
    return sorted([*globals(), *__getattr__("__all__")])
