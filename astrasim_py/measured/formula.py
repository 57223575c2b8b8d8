"""Times of a library's collectives under a profile, as formulas.

With S the full buffer, n ranks, u = S/n, s the steps of a ring (2(n - 1) for all_reduce, else n - 1), and the numbers
of `LibraryProfile`:

=================  ================================================================================
ring, channels     launch + s (step + u/(c channel_rate)) + u/copy,  c = `LibraryProfile.channels_for`
ring, link         launch + s (step + u/rate) + u/copy
direct, channels   launch + step + peer (n - 1) + u/channel_rate
direct, link       launch + step + peer (n - 1) + (n - 1) u/rate + u/copy
switch             launch + (n + 1) u/rate
=================  ================================================================================

all_to_all is direct. The library takes the fastest.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import numpy as np

from astrasim_py.core.units import PS_PER_S
from astrasim_py.topology.profile import LibraryProfile, Protocol, SwitchReduction

#: Collectives that the formulas cover.
COLLECTIVES = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all")
#: Number formats of a byte, which switches do not add.
BYTES = ("int8", "uint8", "fp8_e4m3", "fp8_e5m2", "f8e4m3", "f8e5m2")

#: Numbers of a profile by their place in it, s and bytes/s, e.g. ("LL", "launch").
Numbers = Mapping[tuple[str, str], float | np.ndarray]


class Calls(NamedTuple):
    """Calls of collectives by columns, each [k]. `switch`: whether the switch may reduce."""

    ranks: np.ndarray
    size: np.ndarray
    steps: np.ndarray
    direct: np.ndarray
    switch: np.ndarray


def calls(collective: Sequence[str], size: Sequence[int], ranks: Sequence[int], switch: Sequence[bool]) -> Calls:
    """Columns of some calls of `COLLECTIVES`."""
    kind, n = np.array(collective), np.array(ranks)
    steps = np.where(kind == "all_reduce", 2 * (n - 1), n - 1)
    return Calls(n, np.array(size), steps, kind == "all_to_all", np.array(switch, dtype=bool))


def times(numbers: Numbers, channels: int, channel_bytes: int, of: Calls) -> dict[str, np.ndarray]:
    """Candidate → seconds of every call: protocols, and ``switch``, infinite where the switch does not reduce."""
    part, n = of.size / of.ranks, of.ranks
    copy = part / numbers.get(("", "copy"), np.inf)
    peers = numbers.get(("", "peer"), 0.0) * (n - 1)
    seconds = {}
    for name in dict.fromkeys(first for first, _ in numbers if first not in ("", "switch")):
        launch, step = numbers[name, "launch"], numbers[name, "step"]
        if (name, "channel_rate") in numbers:
            rate = numbers[name, "channel_rate"]
            used_channels = np.clip(of.size // (channel_bytes * n), 1, channels)
            direct, ring = part / rate, of.steps * (step + part / (used_channels * rate)) + copy
        else:
            rate = numbers[name, "rate"]
            direct, ring = (n - 1) * part / rate + copy, of.steps * (step + part / rate) + copy
        seconds[name] = launch + np.where(of.direct, step + peers + direct, ring)
    if ("switch", "launch") in numbers:
        time = numbers["switch", "launch"] + (n + 1) * part / numbers["switch", "rate"]
        seconds["switch"] = np.where(of.switch, time, np.inf)
    return seconds


def numbers_of(profile: LibraryProfile) -> dict[tuple[str, str], float]:
    """The numbers of a profile, s and bytes/s."""
    parts: dict[str, Protocol | SwitchReduction | None] = {**profile.protocols, "switch": profile.switch}
    numbers = {}
    for name, part in parts.items():
        if part is not None:
            numbers[name, "launch"] = part.launch / PS_PER_S
            if isinstance(part, Protocol):
                numbers[name, "step"] = part.step / PS_PER_S
            rates = {key: getattr(part, key, None) for key in ("channel_rate", "rate")}
            numbers |= {(name, key): float(rate) for key, rate in rates.items() if rate is not None}
    if profile.copy_rate is not None:
        numbers["", "copy"] = float(profile.copy_rate)
    numbers["", "peer"] = profile.peer / PS_PER_S
    return numbers


def reduces_in_switch(profile: LibraryProfile, collective: str, ranks: int, dtype: str) -> bool:
    """Whether a profile lets the switch reduce in such a call."""
    switch = profile.switch
    if switch is None:
        return False
    return collective in switch.collectives and dtype in switch.dtypes and ranks >= switch.ranks


def candidates(profile: LibraryProfile, collective: str, size: int, ranks: int, dtype: str) -> dict[str, float]:
    """Candidate → time of one call, ps; the library takes the fastest. `collective`: one of `COLLECTIVES`.

    `size`: full buffer, bytes.
    """
    of = calls([collective], [size], [ranks], [reduces_in_switch(profile, collective, ranks, dtype)])
    seconds = times(numbers_of(profile), profile.channels, profile.channel_bytes, of)
    return {name: float(time[0]) * PS_PER_S for name, time in seconds.items() if np.isfinite(time[0])}
