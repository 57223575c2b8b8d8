"""Whether a machine's collectives take the times that are expected of it, and if not, what fits.

Expected are the simulated times of a library under a profile. A profile's launch is that of one host and driver: up to
`LAUNCH_PS` more a call, the same at all sizes, are no fault of the machine.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from fractions import Fraction
from functools import cached_property
from itertools import groupby
from typing import Any

import numpy as np

from astrasim_py.core.errors import UsageError
from astrasim_py.core.units import format_size, format_time, number_of, parse_bandwidth
from astrasim_py.measured.formula import COLLECTIVES
from astrasim_py.measured.rows import MeasuredRow, left_out_lines, mean_of_repeats
from astrasim_py.topology.hardware import Preset, preset_names, read_preset
from astrasim_py.topology.profile import LibraryProfile
from astrasim_py.validation.measured import MeasuredMachine, PredictedCall

#: A longer launch than the profile's that is not doubted, ps: without CUDA graphs a call takes so much more.
LAUNCH_PS = 20 * 10**6
#: Sizes at which a cause is simulated, at most; for a larger group than this two slow ones, a second or two each.
_SIZES, _LARGE = 6, 64
#: A cause fits if its times are as close as this (root mean square of logarithms), and much closer than those expected;
#: one that is hardly closer is not worth naming.
_FITS, _MUCH, _HARDLY = math.log(1.15), 0.5, 0.75


@dataclass(frozen=True, kw_only=True)
class Cause:
    """Something that is wrong with a machine, as it was simulated. `error`: typical ratio of its times to the measured
    ones, minus 1; `error_without`: the same of the expected times."""

    text: str
    error: float
    error_without: float

    @property
    def nearness(self) -> float:
        """How far its times are from the measured ones, over how far the expected ones are."""
        return math.log1p(self.error) / math.log1p(self.error_without)


@dataclass(frozen=True, kw_only=True)
class SizeCheck:
    """The times of one size."""

    place: str
    size_bytes: int
    measured_ps: int
    expected_ps: int
    is_slow: bool

    @property
    def ratio(self) -> float:
        """measured / expected"""
        return self.measured_ps / self.expected_ps


@dataclass(frozen=True, kw_only=True)
class MachineCheck:
    """A collective of a group at several sizes, ascending. `launch_ps`: how much longer calls take at all sizes.
    `causes`: those that were tried, the nearest first; of what is slow only."""

    preset: str
    profile: str
    calls: tuple[PredictedCall, ...]
    tolerance: float
    launch_ps: int
    causes: tuple[Cause, ...] = ()

    @property
    def row(self) -> MeasuredRow:
        """One of its rows; all have the same collective and group."""
        return self.calls[0].row

    @cached_property
    def sizes(self) -> tuple[SizeCheck, ...]:
        launch = min(self.launch_ps, LAUNCH_PS)
        return tuple(
            SizeCheck(
                place=call.row.place,
                size_bytes=call.row.bytes,
                measured_ps=call.row.time_ps,
                expected_ps=call.time_ps,
                is_slow=call.row.time_ps > (1 + self.tolerance) * (call.time_ps + launch),
            )
            for call in self.calls
        )

    @property
    def within(self) -> bool:
        """Whether no size is slow."""
        return not any(size.is_slow for size in self.sizes)

    @property
    def what(self) -> str:
        """Collective and group."""
        row, nodes = self.row, f" on {number_of(self.row.nodes, 'node')}" if self.row.nodes > 1 else ""
        return f"{row.collective}, {row.dtype}, {number_of(row.ranks, 'rank')}{nodes}"

    @property
    def cause(self) -> Cause | None:
        """The cause that fits clearly."""
        nearest = self.causes[0] if self.causes else None
        fits = nearest is not None and math.log1p(nearest.error) <= _FITS and nearest.nearness <= _MUCH
        return nearest if fits else None

    @property
    def sentence(self) -> str:
        """What the times say of the machine."""
        percent = f"{100 * self.tolerance:g} %"
        if self.within:
            fast = [size for size in self.sizes if size.ratio * (1 + self.tolerance) < 1]
            if not fast:
                return f"as expected: within {percent} at all sizes{self._launch_text()}"
            most = max(1 / size.ratio for size in fast)
            where = _range(self.sizes, [size in fast for size in self.sizes])
            text = f"not slower than expected{self._launch_text()}"
            return f"{text}; {most:.1f} times faster {where}: another machine or library?"
        slow = [size.is_slow for size in self.sizes]
        if self.launch_ps > LAUNCH_PS and not slow[-1]:
            return f"calls take {format_time(self.launch_ps)} longer than expected {_range(self.sizes, slow)}: launch?"
        longest = _longest(slow)
        factor = float(np.median([self.sizes[i].ratio for i in longest]))
        factor_text = f"{factor:.1f} times" if factor >= 1.5 else f"{100 * (factor - 1):.0f} %"
        text = f"{factor_text} too slow {_range(self.sizes, [i in longest for i in range(len(slow))])}"
        if self.cause is not None:
            return f"{text}: {self.cause.text}? (simulated so, {100 * self.cause.error:.0f} % off)"
        if not self.causes:
            return text
        text += f"; of {number_of(len(self.causes), 'cause')} that were simulated none fits"
        if self.causes[0].nearness > _HARDLY:
            return text
        return f"{text}, the nearest is {self.causes[0].text} ({100 * self.causes[0].error:.0f} % off)"

    def _launch_text(self) -> str:
        smallest = min(size.expected_ps for size in self.sizes)
        if self.launch_ps <= self.tolerance * smallest:
            return ""
        return f", besides {format_time(self.launch_ps)} a call that the launch takes longer than in the profile"


def check_machines(
    rows: Sequence[MeasuredRow],
    tolerance: float = 0.2,
    preset: str | None = None,
    profile: str | None = None,
    engine: str = "auto",
    tell: Callable[[str], None] = lambda text: None,
) -> tuple[tuple[MachineCheck, ...], tuple[str, ...]]:
    """A check for each collective and group of some rows, and a line for each kind of row that is left out.

    `tolerance`: share by which a time may be longer. `preset`, `profile`: of the machine and of the library, names or
    files; by default those of the platform of each row. `tell`: takes what is being simulated. Raises UsageError: no
    row is left. Raises TopologyError: no such preset.
    """
    rows = mean_of_repeats(rows)
    out_of_place = any(row.in_place != "1" for row in rows)
    left_out: dict[str, int] = {}
    groups: dict[tuple, list[MeasuredRow]] = {}
    machines: dict[str, MeasuredMachine] = {}
    presets: dict[str, Preset] = {}
    for row in rows:
        name = preset or row.preset
        why = "" if name else f'no preset is known for the platform "{row.platform}"'
        if name and name not in machines:
            presets[name] = _combined(name, profile)
            machines[name] = MeasuredMachine(name, presets[name], engine)
        why = why or ("in place" if out_of_place and row.in_place == "1" else "")
        why = why or ("a given program, not the library" if row.given else "")
        why = why or (machines[name].refusal(row) if name else "")
        if why:
            left_out[why] = left_out.get(why, 0) + 1
        else:
            key = (name, row.platform, row.library, row.version, row.collective, row.dtype, row.ranks, row.nodes)
            groups.setdefault(key, []).append(row)
    if not groups:
        known = preset or next((row.preset for row in rows if row.preset), None)
        remedy = f"write --profile with numbers of this library; checked are {', '.join(COLLECTIVES)}"
        if known is None:
            remedy = f"name the machine with --preset, e.g. {', '.join(preset_names('collectives')[:3])}"
        raise UsageError(rows[0].place, next(iter(left_out)), remedy)
    checks = []
    for (name, *_), listed in groups.items():
        ascending = sorted(listed, key=lambda row: row.bytes)
        tell(f"{len(ascending)} sizes of {ascending[0].collective} on {number_of(ascending[0].ranks, 'rank')}")
        calls = tuple(PredictedCall(row, machines[name].time(row)) for row in ascending)
        check = MachineCheck(
            preset=name,
            profile=profile or name,
            calls=calls,
            tolerance=tolerance,
            launch_ps=_launch(calls),
        )
        checks.append(check if check.within else replace(check, causes=_causes(presets[name], check, engine, tell)))
    return tuple(checks), tuple(left_out_lines(left_out))


def _combined(name: str, profile: str | None) -> Preset:
    """A preset with the profile of another one."""
    content = read_preset(name)
    return content if profile is None else content.model_copy(update={"collectives": read_preset(profile).collectives})


def _launch(calls: Sequence[PredictedCall]) -> int:
    """How much longer calls take whatever their size, ps: the median over those that should take little more than the
    shortest one; 0 where they take less."""
    least = min(call.time_ps for call in calls)
    return max(0, int(np.median([call.row.time_ps - call.time_ps for call in calls if call.time_ps <= 2 * least])))


def _error(calls: Sequence[PredictedCall], launch: int) -> float:
    """Typical ratio of simulated and measured times, minus 1: root mean square of logarithms."""
    logs = [math.log(call.row.time_ps / (call.time_ps + min(launch, LAUNCH_PS))) for call in calls]
    return math.expm1(math.sqrt(sum(value * value for value in logs) / len(logs)))


def _causes(preset: Preset, check: MachineCheck, engine: str, tell: Callable[[str], None]) -> tuple[Cause, ...]:
    """What may be wrong with a machine, the nearest first, simulated at some sizes: the slow ones and others."""
    chosen = [call for call, size in zip(check.calls, check.sizes, strict=True) if size.is_slow]
    is_large = check.row.ranks > _LARGE
    chosen = [chosen[0], chosen[-1]][: len(chosen)] if is_large else list(check.calls)
    last = len(chosen) - 1
    if last >= _SIZES:
        chosen = [chosen[i * last // (_SIZES - 1)] for i in range(_SIZES)]
    causes, without = [], _error(chosen, check.launch_ps)
    for text, changed in _alternatives(preset, check.row):
        tell(f"{check.what}: {text}")
        machine = MeasuredMachine(text, changed, engine)
        calls = [PredictedCall(call.row, machine.time(call.row)) for call in chosen]
        if any(call.time_ps != expected.time_ps for call, expected in zip(calls, chosen, strict=True)):
            launch = check.launch_ps if is_large else _launch(calls)
            causes.append(Cause(text=text, error=_error(calls, launch), error_without=without))
    return tuple(sorted(causes, key=lambda cause: cause.error))


def _alternatives(preset: Preset, row: MeasuredRow) -> Iterator[tuple[str, Preset]]:
    """Machines with a fault: fewer or slower NICs and links, no reduction in switches, one protocol alone."""
    keys, profile = preset.topology, preset.collectives
    if keys is None or profile is None:
        return
    without_switch = {"switch": None}
    if row.nodes > 1 and "nic_bandwidth" in keys:
        per_node = int(keys["npus"])
        yield "half of the NICs, or NICs at half their rate", _slower(preset, "nic_bandwidth", 2)
        if per_node > 2:
            yield "a quarter of the NICs", _slower(preset, "nic_bandwidth", 4)
            yield f"one NIC of {per_node}", _slower(preset, "nic_bandwidth", per_node)
    link = "nvlink_bandwidth" if "nvlink_bandwidth" in keys else "bandwidth"
    name = "NVLink" if link == "nvlink_bandwidth" else "the links"
    if link in keys:
        yield f"half the bandwidth of {name}", _slower(preset, link, 2)
        if row.nodes == 1:
            yield f"a quarter of the bandwidth of {name}", _slower(preset, link, 4)
    if profile.switch is not None and row.nodes == 1:  # between nodes switches do not reduce under a profile
        yield "no reduction in the NVLink switches", _with_profile(preset, profile, without_switch)
        half = _slower(preset, link, 2)
        yield (
            f"half the bandwidth of {name} and no reduction in its switches",
            _with_profile(half, profile, without_switch),
        )
    if link == "nvlink_bandwidth":
        pcie = read_preset("pcie_gen5_x16").link
        ratio = Fraction(parse_bandwidth(keys[link])) / pcie.bandwidth if pcie else 1
        slow = _with_profile(_slower(preset, link, ratio), profile, without_switch)
        yield "PCIe in place of NVLink", slow
    for protocol in profile.protocols if len(profile.protocols) > 1 else ():
        steps = {"protocols": {protocol: profile.protocols[protocol]}, **without_switch}
        yield f"protocol {protocol} alone (NCCL_PROTO?)", _with_profile(preset, profile, steps)


def _slower(preset: Preset, key: str, times: int | Fraction) -> Preset:
    """The preset with a bandwidth of its topology divided."""
    keys: Mapping[str, Any] = preset.topology or {}
    slow = f"{int(parse_bandwidth(keys[key]) / times)} B/s"
    return preset.model_copy(update={"topology": {**keys, key: slow}})


def _with_profile(preset: Preset, profile: LibraryProfile, changes: Mapping[str, Any]) -> Preset:
    return preset.model_copy(update={"collectives": profile.model_copy(update=changes)})


def _longest(slow: Sequence[bool]) -> list[int]:
    """Places of the slow sizes at the upper end; where there are none, of the longest run of slow ones."""
    runs = [[i for i, _ in run] for is_slow, run in groupby(enumerate(slow), key=lambda pair: pair[1]) if is_slow]
    return runs[-1] if slow[-1] else max(runs, key=len)


def _range(sizes: Sequence[SizeCheck], chosen: Sequence[bool]) -> str:
    """Which sizes are chosen, in words."""
    texts = [format_size(size.size_bytes) for size, is_chosen in zip(sizes, chosen, strict=True) if is_chosen]
    if all(chosen):
        return "at all sizes"
    if len(texts) == 1 and not chosen[0] and not chosen[-1]:
        return f"at {texts[0]} alone"
    if chosen[-1]:
        return f"from {texts[0]} on"
    return f"up to {texts[-1]}" if chosen[0] else f"from {texts[0]} to {texts[-1]}"
