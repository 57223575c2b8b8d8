"""Measured times of collectives against simulation under a profile."""

import math
import os
import re
from collections import Counter
from collections.abc import Collection, Iterable, Sequence
from dataclasses import dataclass
from functools import cache, partial
from importlib.resources import files
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from astrasim_py.collectives.collective import busbw_factor
from astrasim_py.core.errors import TopologyError, UsageError
from astrasim_py.engine.simulation import simulate
from astrasim_py.measured.formula import COLLECTIVES, reduces_in_switch
from astrasim_py.measured.rows import MeasuredRow, left_out_lines, mean_of_repeats, read_rows
from astrasim_py.msccl.to_traces import read_msccl
from astrasim_py.preparation.from_python import collective
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.report.explore_plots import files as drawn
from astrasim_py.report.measured_plots import Curve, bus_bandwidths
from astrasim_py.topology.from_keys import build
from astrasim_py.topology.hardware import Preset, preset_names, read_preset
from astrasim_py.topology.model import Topology

#: Bands of sizes, and the largest full buffer of each but the last.
BANDS = (("≤ 256 KiB", 2**18), ("between", 2**24 - 1), ("≥ 16 MiB", None))
#: Rows that are farthest off which a report names.
WORST = 10


class PredictedCall(NamedTuple):
    """A measured row, and its simulated time in ps."""

    row: MeasuredRow
    time_ps: int

    @property
    def error(self) -> float:
        """simulated / measured - 1"""
        return self.time_ps / self.row.time_ps - 1


@dataclass(frozen=True, kw_only=True)
class CallErrors:
    """Errors of some rows; None: of all. `bias`: median of simulated / measured - 1, with its sign."""

    platform: str | None = None
    collective: str | None = None
    ranks: int | None = None
    band: str | None = None
    cases: int
    median_rel_error: float
    p90_rel_error: float
    bias: float


@dataclass(frozen=True, kw_only=True)
class MeasuredReport:
    """All rows that can be predicted, repeats as one; a line for each kind that cannot, or is beyond its profile."""

    predicted: tuple[PredictedCall, ...]
    notes: tuple[str, ...]

    def group(self, **of: Any) -> CallErrors:
        """Errors of rows of a platform, collective, number of ranks, or band."""
        errors = np.array([call.error for call in self.predicted if all(_key(call.row, k) == v for k, v in of.items())])
        off = np.abs(errors)
        return CallErrors(
            **of,
            cases=len(errors),
            median_rel_error=float(np.median(off)),
            p90_rel_error=float(np.quantile(off, 0.9)),
            bias=float(np.median(errors)),
        )

    def groups(self, *keys: str, **of: Any) -> list[CallErrors]:
        """A group for every combination of the keys that occurs in `of`, as of `group`."""
        rows = [call.row for call in self.predicted if all(_key(call.row, k) == v for k, v in of.items())]
        combinations = dict.fromkeys(tuple(_key(row, key) for key in keys) for row in rows)
        return [self.group(**of, **dict(zip(keys, values, strict=True))) for values in sorted(combinations, key=_order)]

    @property
    def worst(self) -> list[PredictedCall]:
        """The rows that are farthest off by the ratio of times."""
        return sorted(self.predicted, key=lambda one: -abs(math.log(one.time_ps / one.row.time_ps)))[:WORST]


def _key(row: MeasuredRow, key: str) -> object:
    return band(row.bytes) if key == "band" else getattr(row, key)


def _order(values: tuple) -> tuple:
    """Bands in their order, all else by value."""
    bands = [name for name, _ in BANDS]
    return tuple(bands.index(value) if value in bands else value for value in values)


def band(size: int) -> str:
    return next(name for name, most in BANDS if most is None or size <= most)


class MeasuredMachine:
    """A machine with a profile, on which calls are simulated, each once. `programs`: folder of files of given ones."""

    def __init__(self, name: str, preset: Preset, engine: str = "auto", programs: str | None = None) -> None:
        if preset.collectives is None or preset.topology is None:
            names = ", ".join(preset_names("collectives"))
            raise TopologyError(name, "has no numbers of collectives on a machine", f"write one of {names}")
        if "npus" not in preset.topology:
            problem = f"is a {preset.topology['shape']}, which is no node of so many NPUs"
            raise TopologyError(name, problem, "write the preset of a node, e.g. dgx_h100")
        self.name, self.profile, self.engine = name, preset.collectives, engine
        # A profile has a way of its own to reduce in switches.
        self.keys = {key: value for key, value in preset.topology.items() if key != "switches"}
        self.programs, self.algorithms = programs, cache(read_msccl)
        self.topologies: dict[int, Topology] = {}
        self.times: dict[tuple, int] = {}

    def refusal(self, row: MeasuredRow) -> str:
        """Why a row cannot be simulated; empty where it can."""
        if row.given:
            return self._refusal_of_program(row)
        if not self.profile.protocols:
            return f"{self.name} has no numbers of a library's own collectives"
        if row.collective not in COLLECTIVES:
            return f"no algorithm of the library for {row.collective}"
        if row.ranks == 1:
            return "a call of one rank moves no data"
        if row.nodes > 1 and self.profile.network is None:
            return f"{row.ranks} ranks on {row.nodes} nodes"
        if row.ranks > row.nodes * self.keys["npus"]:
            return f"more ranks than {self.name} has"
        return ""

    def _refusal_of_program(self, row: MeasuredRow) -> str:
        if row.protocol not in (self.profile.programs or {}):
            return f"{self.name} has no costs of programs under {row.protocol or 'an unknown protocol'}"
        if self.programs is None:
            return "times of given programs; --programs FOLDER names that of their files"
        if "/" in row.algorithm or not os.path.isfile(Path(self.programs, row.algorithm)):
            return f'there is no file "{row.algorithm}" in {self.programs}'
        return ""

    def beyond(self, row: MeasuredRow) -> bool:
        """Whether a row is beyond the sizes, ranks or formats of the profile; between nodes it always is."""
        profile, (low, high) = self.profile, self.profile.sizes
        within = low <= row.bytes <= high and min(profile.ranks) <= row.ranks <= max(profile.ranks)
        return not within or row.dtype not in profile.dtypes

    def time(self, row: MeasuredRow) -> int:
        """Simulated time of a row's call, ps."""
        in_switch = reduces_in_switch(self.profile, row.collective, row.ranks, row.dtype)
        switch = in_switch and not row.given and row.nodes == 1
        call = row.collective, row.bytes, row.ranks, row.nodes, switch, row.algorithm if row.given else None
        if call not in self.times:
            if row.nodes not in self.topologies:
                keys = {**self.keys, "nodes": row.nodes} if row.nodes > 1 else self.keys
                self.topologies[row.nodes] = build(keys, self.name, written=True)
            topology, per_node = self.topologies[row.nodes], row.ranks // row.nodes
            group = [node * self.keys["npus"] + k for node in range(row.nodes) for k in range(per_node)]
            algorithm: Algorithm | str | None = "nccl" if row.nodes > 1 else None
            if row.given and self.programs is not None:
                algorithm = self.algorithms(Path(self.programs, row.algorithm))
            problem = collective(
                row.collective, row.bytes, topology, algorithm=algorithm, npus=group,
                profile=self.profile, switch_reduction=switch,
            )  # fmt: skip
            self.times[call] = simulate(problem, engine=self.engine, level="summary").makespan
        return self.times[call]


def compare(
    rows: Iterable[MeasuredRow], profile: str | None = None, engine: str = "auto", programs: str | None = None
) -> MeasuredReport:
    """Simulate every row, with repeats as one.

    `profile`: preset or file for all rows; None: the preset of each row's platform. `programs`: folder of the files of
    given programs. Raises UsageError: no row can be predicted; TopologyError: there is no such profile.
    """
    machines: dict[str, MeasuredMachine] = {}
    left_out: Counter[str] = Counter()
    predicted, beyond = [], 0
    first: tuple[MeasuredRow, str] | None = None
    rows = mean_of_repeats(rows)
    in_place = all(row.in_place == "1" for row in rows)
    for row in rows:
        name, machine = profile or row.preset, None
        if name is not None:
            if name not in machines:
                machines[name] = MeasuredMachine(name, read_preset(name), engine, programs)
            machine = machines[name]
        unknown = f'no profile is known for the platform "{row.platform}"'
        why = unknown if machine is None else machine.refusal(row)
        if not why and row.in_place == "1" and not (row.given or in_place):
            why = "in place"
        if machine is None or why:
            first = first or (row, why)
            left_out[why] += 1
        else:
            beyond += machine.beyond(row)
            predicted.append(PredictedCall(row, machine.time(row)))
    if first is not None and not predicted:
        row, why = first
        remedy = f"name one with --profile, e.g. {', '.join(preset_names('collectives')[:3])}"
        if profile or row.preset:
            remedy = f"no row is left; times of {', '.join(COLLECTIVES)} can be compared"
        raise UsageError(row.place, why, remedy)
    notes = left_out_lines(left_out)
    if beyond:
        notes.append(f"beyond the sizes, ranks or number formats for which their profile has numbers: {beyond} rows")
    return MeasuredReport(predicted=tuple(predicted), notes=tuple(notes))


def packaged_rows() -> list[MeasuredRow]:
    """Measured times that ship with the package: those that its profiles are fitted to."""
    return read_rows([str(files("astrasim_py").joinpath("data/validation/measured.csv"))])


def figures(report: MeasuredReport, slow: Collection[PredictedCall] = ()) -> dict[str, bytes]:
    """File name → content: a figure per platform and number format. `slow`: calls that are marked as too slow."""
    drawings: dict[str, bytes] = {}
    for group in sorted({(call.row.platform, call.row.dtype) for call in report.predicted}):
        calls = [call for call in report.predicted if (call.row.platform, call.row.dtype) == group]
        panels = {
            kind: [
                _curve(ranks, [call for call in calls if (call.row.collective, call.row.ranks) == (kind, ranks)], slow)
                for ranks in sorted({call.row.ranks for call in calls if call.row.collective == kind})
            ]
            for kind in sorted({call.row.collective for call in calls})
        }
        heading = f"{group[0]}, {group[1]}: measured points over simulated curves ± 10 %"
        name = re.sub(r"[^\w.-]+", "_", "_".join(group))
        drawings |= drawn(name, partial(bus_bandwidths, heading, panels))
    return drawings


def _curve(ranks: int, of: Sequence[PredictedCall], slow: Collection[PredictedCall]) -> Curve:
    factor = float(busbw_factor(of[0].row.collective, ranks) or 0)
    times = {call.row.bytes: call.time_ps for call in of}
    sizes = sorted(times)
    # bytes per ps are 1000 GB/s
    return Curve(
        ranks=ranks,
        sizes=sizes,
        simulated=[1000 * factor * size / times[size] for size in sizes],
        measured_sizes=[call.row.bytes for call in of],
        measured=[1000 * factor * call.row.bytes / call.row.time_ps for call in of],
        slow={call.row.bytes: call.row.time_ps / call.time_ps for call in of if call in slow},
    )
