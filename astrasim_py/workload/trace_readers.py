"""Readers of traces by name: what other programs wrote becomes a workload of Chakra ETs.

A reader is a module, or another object, with two functions:

* ``arguments(parser)`` adds its options to an `argparse.ArgumentParser`,
* ``read(arguments, say) -> Conversion`` reads what they name; ``say(text)`` tells a person how far it is.

Other packages provide theirs as entry points ``trace_reader.<name>``; see `astrasim_py.core.registry`.
"""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from astrasim_py.core.registry import names, provided

if TYPE_CHECKING:
    from astrasim_py.chakra.workload import Workload

#: Our readers: module by name of the format.
READERS = {"astra_sim_text": "astrasim_py.astra_sim.text_reader", "pytorch": "astrasim_py.pytorch.reader"}


@dataclass(frozen=True)
class Conversion:
    """The result of a reader.

    Attributes
    ----------
    workload : Workload
    report : mapping
        Details of the conversion, as JSON.
    lines : sequence of str
        The same as text.
    problems : sequence of str
        Reasons not to trust the result; empty if there are none.
    warnings : sequence of str
        What was given and not used, or assumed; a run prints it and fails with ``--strict``.
    """

    workload: Workload
    report: Mapping[str, Any]
    lines: Sequence[str]
    problems: Sequence[str] = ()
    warnings: Sequence[str] = ()


def reader_names() -> tuple[str, ...]:
    """Names of all readers, ours first."""
    return (*READERS, *(name for name in names("trace_reader") if name not in READERS))


def trace_reader(name: str) -> Any:
    """The reader of a format, imported now. Raises ScenarioError: another package's cannot be imported."""
    return importlib.import_module(READERS[name]) if name in READERS else provided("trace_reader", name)
