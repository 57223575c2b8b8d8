"""A run of nccl-tests or rccl-tests, whatever the form of its output: its call, its times, and what does not fit."""

import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from pathlib import Path
from typing import NamedTuple

from astrasim_py.collectives.collective import COLLECTIVES, busbw_factor
from astrasim_py.core.fields import NPU_CAP

#: Collectives by the names of tests, without what is no letter.
_TESTS = {name.replace("_", ""): name for name in (*COLLECTIVES, "send_recv")}
#: Those whose names are words of other file names, too.
_WORDS = ("reduce", "gather", "scatter", "barrier")
#: Collectives whose bus bandwidth tells the number of ranks.
_TELLING = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "gather", "scatter")
#: Relative error of a ratio of printed bandwidths beyond that of their last digits.
_SLACK = 0.002
#: Width of the range of a ratio, by the last digits, from which on it tells nothing.
_TELLS = 0.1
#: GPU names → platforms.
_GPUS = (
    (r"\bA100-SXM", "A100-SXM"),
    (r"\bH100 80GB HBM3", "H100-SXM"),
    (r"\bGB([23])00\b", r"GB\g<1>00"),
    (r"\bH200(?! NVL)\b", "H200"),
    (r"\bB200\b", "B200-SXM"),
    (r"\bB300\b", "B300"),
    (r"\bMI300X\b", "MI300X"),
)
#: What stands for a time that was not measured.
_UNMEASURED = ("", "N/A", "SKIP", "NAN", "-")
WHOLE = "name the whole output of a finished run"

#: Takes what is left out: its place, why, and what to do about it.
Leave = Callable[[str, str, str], None]
#: Takes what to know of the rows that are used: a place and a text.
Note = Callable[[str, str], None]


class Device(NamedTuple):
    """A rank as a run lists it. `process`: what tells processes of one host apart."""

    rank: int
    group: int
    process: str
    host: str
    gpu: str


class Time(NamedTuple):
    """A time of a run, each number as it is printed. `wrong`: count of wrong values; empty where none is counted."""

    here: str
    size: str
    dtype: str
    redop: str
    in_place: str
    us: str
    algbw: str
    busbw: str
    wrong: str


@dataclass
class BenchmarkRun:
    """One run of a test as far as it was read. `ranks`: their number where no devices are listed; 0: as its bandwidths
    tell; None: unknown."""

    place: str
    test: str = ""
    library: str = "NCCL"
    version: str = ""
    devices: list[Device] = field(default_factory=list)
    ranks: int | None = None
    times: list[Time] = field(default_factory=list)
    of_host: bool = False  # its times are those of the CPU


class _Call(NamedTuple):
    ranks: int
    nodes: int


def cells(run: BenchmarkRun, file: str, leave: Leave, note: Note) -> Iterator[tuple[str, dict[str, str]]]:
    """``file:line`` and cells of every time of a run that can be used."""
    if run.of_host:
        for time in run.times:
            problem = "the times are those of the CPU (-C), not of the collective"
            leave(time.here, problem, "measure without -C")
        return
    times = [time for time in run.times if _usable(time, leave)]
    if not times:
        return
    collective = _collective(run, times, file, note)
    if not collective:
        problem = "the output of nccl-tests does not say which test ran"
        leave(run.place, problem, "put its name into that of the file, e.g. all_reduce_8.txt")
        return
    ranks = run.ranks or (_implied(collective, times) if run.ranks is not None else 0)
    if not run.devices and not ranks:
        leave(times[0].here, 'no line "#  Rank" before the table lists the ranks', WHOLE)
        return
    if not run.devices:
        note(run.place, f"lists no devices: {_counted(ranks, 'rank')}, taken as one node")
    call = _spread(_of_one_group(run, note)) if run.devices else _Call(ranks, 1)
    if call is None:
        leave(run.place, "its ranks are not spread evenly over its nodes", "measure equal nodes")
        return
    gpus = sorted({device.gpu for device in run.devices})
    if len(gpus) > 1:
        note(run.place, f"its ranks have different GPUs, {', '.join(gpus)}; the platform is that of the first")
    gpu = run.devices[0].gpu if run.devices else ""
    row = {
        "platform": _platform(gpu),
        "library": "RCCL" if "AMD" in gpu else run.library,
        "version": run.version,
        "collective": collective,
        "ranks": str(call.ranks),
        "nodes": str(call.nodes),
    }
    usable = _consistent(times, collective, call.ranks, leave)
    reductions = sorted({time.redop for time in usable})
    if len(reductions) > 1:
        note(run.place, f"times of the reductions {', '.join(reductions)} count as repeats of one collective")
    for time in usable:
        more = {"bytes": time.size, "dtype": time.dtype, "time_us": time.us, "in_place": time.in_place}
        yield time.here, row | more


def _usable(time: Time, leave: Leave) -> bool:
    """Whether a time is one; what was not measured and empty buffers say nothing."""
    if time.us.upper() in _UNMEASURED or not int(time.size):
        return False
    if not _is_number(time.us):
        leave(time.here, f'the time "{time.us[:32]}" is no number of microseconds', WHOLE)
        return False
    if time.wrong not in ("", "N/A") and _is_number(time.wrong) and float(time.wrong):
        leave(time.here, f"{time.wrong} values are wrong: no time of this collective", "measure it again")
        return False
    return True


def _is_number(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,18}(\.[0-9]{0,18})?(e[+-]?[0-9]{1,2})?", text) is not None


def dotted(code: int) -> str:
    """22606 → 2.26.6."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"


# -- the call ---------------------------------------------------------------------------------------------------------


def _collective(run: BenchmarkRun, times: Sequence[Time], file: str, note: Note) -> str:
    """The collective of a run, by its output, the name of the file, or a factor that only all_reduce has; or empty."""
    printed_name, called = _squeezed(run.test).removesuffix("perf"), _squeezed(Path(file).name)
    names = (name for test, name in _TESTS.items() if test in called and test not in _WORDS)
    name = _TESTS.get(printed_name, run.test) or next(names, "")
    if not name and any(low > 1 + _SLACK for time in times for low, _ in _factors(time)):
        note(run.place, "does not say which test ran: all_reduce, as busbw is more than algbw")
        name = "all_reduce"
    return name


def _squeezed(text: str) -> str:
    return re.sub(r"[^a-z]", "", text.lower())


def _of_one_group(run: BenchmarkRun, note: Note) -> list[Device]:
    """Devices of the call whose times are printed: that of rank 0, where groups of ranks call at once."""
    devices = _of_one_run(run, note)
    groups: dict[int, list[Device]] = {}
    for device in devices:
        groups.setdefault(device.group, []).append(device)
    members = groups[min(devices).group]
    if len(groups) > 1:
        alike = len({_spread(group) for group in groups.values()}) == 1
        sizes = "each" if alike else "of unequal size, that of rank 0"
        where = f"{_counted(len(members), 'rank')} on {_counted(len({device.host for device in members}), 'node')}"
        text = f"{len(groups)} groups call at once (NCCL_TESTS_SPLIT), {sizes} over {where}"
        note(run.place, f"{text}; the times hold what they cost each other, which a simulated call does not")
    return members


def _of_one_run(run: BenchmarkRun, note: Note) -> list[Device]:
    """Devices of one process group: of processes that each list the same ranks, those of the first."""
    processes: dict[tuple[str, str], list[Device]] = {}
    for device in run.devices:
        processes.setdefault((device.host, device.process), []).append(device)
    first, *others = processes.values()
    ranks = {device.rank for device in first}
    if others and all({device.rank for device in process} == ranks for process in others):
        text = f"{1 + len(others)} processes list the same ranks: nccl-tests was built without MPI"
        note(run.place, f"{text}, and each ran alone, over {_counted(len(ranks), 'rank')}")
        return first
    return list({device.rank: device for device in run.devices}.values())  # a list that was printed again


def _counted(count: int, noun: str) -> str:
    return f"{count} {noun}{'s' * (count != 1)}"


def _spread(devices: Sequence[Device]) -> _Call | None:
    hosts: dict[str, int] = {}
    for device in devices:
        hosts[device.host] = hosts.get(device.host, 0) + 1
    return _Call(len(devices), len(hosts)) if len({*hosts.values()}) == 1 else None


def _platform(gpu: str) -> str:
    for pattern, name in _GPUS:
        if match := re.search(pattern, gpu):
            return match.expand(name)
    return gpu or "unknown"


# -- bandwidths -------------------------------------------------------------------------------------------------------


def _bounds(text: str) -> tuple[float, float]:
    """Range of the values that are printed so."""
    value = float(text)
    digits, _, power = text.partition("e")
    half = 0.5 * 10.0 ** (int(power or 0) - len(digits.partition(".")[2]))
    return max(value - half, 0.0), value + half


def _factors(time: Time) -> Iterator[tuple[float, float]]:
    """Ranges of busbw over size / time, and over algbw, as far as they are narrow enough to tell.

    Early versions printed an algbw of all_gather and reduce_scatter that holds the factor already.
    """
    if not (_is_number(time.algbw) and _is_number(time.busbw)):
        return
    (low, high), (bus_low, bus_high), (shortest, longest) = map(_bounds, (time.algbw, time.busbw, time.us))
    size = int(time.size) / 1000  # bytes per us are 1/1000 GB/s
    for factor in ((bus_low * shortest / size, bus_high * longest / size), low and (bus_low / high, bus_high / low)):
        if factor and factor[1] - factor[0] < _TELLS:
            yield factor


def _implied(collective: str, times: Sequence[Time]) -> int:
    """Number of ranks that the bandwidths mean; 0 where they mean none or do not tell."""
    factors = [next(_factors(time), None) for time in times]
    if collective not in _TELLING or not any(factors):
        return 0
    low, high = min(filter(None, factors), key=lambda factor: factor[1] - factor[0])
    part = (low + high) / 2 / (2 if collective == "all_reduce" else 1)
    ranks = round(1 / (1 - part)) if part < 1 else 0
    if not 0 < ranks <= NPU_CAP:
        return 0
    factor, of_half = (float(busbw_factor(collective, count) or 0) for count in (ranks, max(ranks // 2, 1)))
    certain = ranks == 1 or not low <= of_half <= high
    return ranks if certain and low * (1 - _SLACK) <= factor <= high * (1 + _SLACK) else 0


def _consistent(times: Sequence[Time], collective: str, ranks: int, leave: Leave) -> list[Time]:
    """Times whose bandwidths are those of their size and number of ranks. What most of them contradict, none is of."""
    if collective not in _TELLING:
        return list(times)
    factor = float(busbw_factor(collective, ranks) or Fraction(0))
    against: list[Time] = []
    sized: list[Time] = []
    judged = 0
    for time in times:
        fits = [low * (1 - _SLACK) <= factor <= high * (1 + _SLACK) for low, high in _factors(time)]
        judged += bool(fits)
        if fits and not fits[0]:
            (sized if any(fits) else against).append(time)
    if against and 2 * len(against) > judged:
        implied, contrast = _implied(collective, against), f"the run lists {_counted(ranks, 'rank')}"
        problem = f"busbw / algbw is that of {_counted(implied, 'rank')}, but {contrast}"
        if implied < 1:
            problem = f"busbw / algbw is that of no {collective}, whatever the number of ranks"
        for time in times:
            leave(time.here, problem, "name the output of one run with all its lines")
        return []
    for time in against:
        leave(time.here, f"busbw / algbw is not that of {ranks} ranks, as in other rows", WHOLE)
    for time in sized:
        leave(time.here, "algbw is not size / time", WHOLE)
    bad = {*against, *sized}
    return [time for time in times if time not in bad]
