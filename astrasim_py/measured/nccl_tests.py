"""Output of nccl-tests and rccl-tests as cells of the CSV of measured times.

A run begins with ``# nThread … nGpus``, or before with ``# nccl-tests version`` (from 2.17 on, with the name of the
test); a line per rank names host and GPU; the table has times in microseconds, out of place and in place; two lines
with totals end it. Other lines are of other programs (mpirun, NCCL_DEBUG).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path

from astrasim_py.core.errors import UsageError

_PREFIX = re.compile(r"^\[\d+,\d+\]<stdout>:")  # of mpirun
_RUN = re.compile(r"#?\s*nThread\s+\d+\s+nGpus\s+\d+")
_RANK = re.compile(r"#?\s+Rank\s+\d+\s.*?Pid\s+\d+\s+on\s+(\S+)\s+device\s+\S+\s+\[[^\]]*\]\s*(.*?)\s*$")
_HEADING = re.compile(r"#?\s*size\s+count\s+type\b.*\bbusbw\b")
_CELLS = re.compile(r"\s*\d+\s+\d+\s+[a-z]\w*\b")
_END = re.compile(r"#?\s*(Out of bounds values|Avg bus bandwidth)")
_TEST = re.compile(r"([a-z]+(?:_[a-z]+)*)_perf\b")
_LIBRARY = re.compile(r"nccl-library=(\d+)|\b(?:NCCL|RCCL) version\s*:?\s*([\d.]+)")
#: Tests whose names are not those of our collectives.
_TESTS = {"alltoall": "all_to_all", "sendrecv": "send_recv"}
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


def is_output(text: str) -> bool:
    """Whether a text is of nccl-tests or rccl-tests."""
    return any(_RUN.match(line) or _HEADING.match(line) for line in map(_plain, text.splitlines()))


def _plain(line: str) -> str:
    return _PREFIX.sub("", line)


@dataclass
class _Run:
    """One run of a test as far as it was read."""

    test: str = ""
    version: str = ""
    hosts: list[str] = field(default_factory=list)
    gpu: str = ""
    library: str = "NCCL"
    columns: int = 0  # times in a row: out of place, and in place
    counts_wrong: bool = False  # before 2.12 a row had the largest rounding error instead
    rows: int = 0


def cells(text: str, place: str) -> Iterator[tuple[str, dict[str, str]]]:
    """``file:line`` and cells of every time, but of empty buffers.

    Raises UsageError: it ends in the middle, has wrong values, or does not say ranks or collective.
    """
    run, named, number, version = _Run(), "", 0, ""
    for number, line in enumerate(map(_plain, text.splitlines()), 1):
        here = f"{place}:{number}"
        if found := _LIBRARY.search(line):
            version = found[2] or _dotted(int(found[1]))
        if _RUN.match(line):
            _check_ended(run, here)
            run, named = _Run(test=named), ""
        elif found := _RANK.match(line):
            run.hosts.append(found[1])
            run.gpu = found[2]
        elif line.startswith("rccl-tests"):
            run.library = "RCCL"
        elif _HEADING.match(line):
            run.columns = len(re.findall(r"\btime\b", line))
            run.counts_wrong = "#wrong" in line
        elif _END.match(line):
            run.columns = 0
        elif run.columns and _CELLS.match(line):
            run.version = version
            run.rows += 1
            yield from _times(line.split(), run, here, place)
        elif found := _TEST.search(line):
            named = found[1]
            if not run.columns and not run.rows:
                run.test = run.test or named
    _check_ended(run, f"{place}:{number}")
    if not run.rows:
        raise UsageError(f"{place}:{number}", "there is no time in the output of nccl-tests", "name a finished run")


def _check_ended(run: _Run, here: str) -> None:
    if run.columns:
        problem = 'the output of nccl-tests ends in the middle: "# Avg bus bandwidth" does not follow'
        raise UsageError(here, problem, "name the whole output of a finished run")


def _times(words: list[str], run: _Run, here: str, place: str) -> Iterator[tuple[str, dict[str, str]]]:
    if len(words) < 3 + 4 * run.columns:
        raise UsageError(here, "a row of nccl-tests is cut", "name the whole output of a finished run")
    if not run.hosts:
        raise UsageError(here, 'no line "#  Rank" before the table lists the ranks', "name the whole output")
    row = {
        "platform": _platform(run.gpu),
        "library": "RCCL" if "AMD" in run.gpu else run.library,
        "version": run.version,
        "collective": _collective(run, here, place),
        "dtype": words[2],
        "ranks": str(len(run.hosts)),
        "nodes": str(len(set(run.hosts))),
        "bytes": words[0],
    }
    for column in range(run.columns):
        time = words[4 * (column - run.columns)]
        if int(words[0]) and time != "N/A":
            wrong = words[4 * (column - run.columns) + 3]
            if run.counts_wrong and wrong not in ("0", "N/A"):
                raise UsageError(here, f"{wrong} values are wrong: no time of this collective", "measure it again")
            yield here, {**row, "time_us": time, "in_place": str(column)}


def _collective(run: _Run, here: str, place: str) -> str:
    """The test that was run, by its output or the name of the file."""
    if not run.test:
        known = ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "alltoall", "sendrecv", "broadcast")
        run.test = next((name for name in known if name in Path(place).name.lower()), "")
    if not run.test:
        problem = "the output of nccl-tests does not say which test ran"
        raise UsageError(here, problem, "put its name into that of the file, e.g. all_reduce_8.txt")
    return _TESTS.get(run.test, run.test)


def _platform(gpu: str) -> str:
    for pattern, name in _GPUS:
        if found := re.search(pattern, gpu):
            return found.expand(name)
    return gpu or "unknown"


def _dotted(code: int) -> str:
    """22606 → 2.26.6."""
    return f"{code // 10000}.{code // 100 % 100}.{code % 100}"
