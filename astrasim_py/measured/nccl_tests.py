"""Text that nccl-tests and rccl-tests print, as runs.

A run begins with ``# nThread … nGpus``, or before with ``# nccl-tests version`` (from 2.17 on, with the name of the
test); a line per rank names group, process, host and GPU; the table has times in microseconds, out of place and in
place, under a heading that names its columns; two lines with totals end it. Launchers write labels and times before the
lines: each label is an output of its own, and lines are recognised wherever they begin. Other lines are of other
programs (mpirun, NCCL_DEBUG).
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field

from astrasim_py.measured.benchmark import WHOLE, BenchmarkRun, Device, Leave, Note, Time, dotted

_COLOUR = re.compile(r"\x1b\[[0-9;?]*[A-Za-z]")
_QUOTED = re.compile(r'^\s*"(.*)",?\s*$')  # a line in a list of strings, as ansible prints it
_RUN = re.compile(r"\bnThread\s+\d+\s+nGpus\s+\d+")
_RANK = re.compile(
    r"\bRank\s+(\d+)\s+(?:Group\s+(\d+)\s+)?Pid\s+(\d+)\s+on\s+(\S+)\s+device\s+\S+\s+\[[^\]]*\]\s*(.*?)\s*$"
)
_PLACES = re.compile(r"\b(?:out-of|in)-place\b")
_HEADING = re.compile(r"\bsize\s+count\s+type\b.*\bbusbw\b.*")
_CELLS = re.compile(r"(?<![\w.])(\d+)\s+(\d+)\s+([a-z]\w*)\b(.*)")
_NUMBERS = re.compile(r"(?:(?:^|\s+)(?:\d[\d.e+]*|N/A)){2,}\s*$")
_END = re.compile(r"\bAvg bus bandwidth")
_TEST = re.compile(r"([a-z]+(?:_[a-z]+)*)_perf(?:_mpi)?\b")
_LIBRARY = re.compile(r"nccl-library=(\d+)|\b(?:NCCL|RCCL) version\s*:?\s*([\d.]+)")
_WARNING = re.compile(r"\bNCCL WARN\b\s*(.*)")
_FAILURE = re.compile(r"\bTest (?:NCCL|CUDA|HIP) failure\b.*|\bTest timeout\b.*|# Out of bounds values : \d+ FAILED.*")
_BLOCKING = re.compile(r"\bBlocking Enabled\b")
#: Times that launchers write before a line, which differ from line to line.
_CLOCK = re.compile(
    r"\d{4}[-/]\d\d[-/]\d\d|\d\d?:\d\d:\d\d(?:[.,]\d+)?|(?<=\d)(?:Z|[+-]\d\d:?\d\d)(?=\s|$)|\bT(?=\s|$)|\b\d{10}\.\d+\b"
    r"|\b(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)\b,?|\b(?:Jan|Feb|Mar|Apr|May|Jun|Jul|Aug|Sep|Oct|Nov|Dec)\s+\d+\b"
    r"|(?<=:\d\d )(?:19|20)\d\d|\b(?:UTC|[AP]M)\b"
)
#: Characters of a line that are looked at.
_LONGEST = 1024
_TIMES = ("time", "cputime")
#: Columns before those of a place.
_LEADING = ("size", "count", "type", "redop", "root")
_STAMP = "timestamp"


def is_output(text: str) -> bool:
    """Whether a text is of nccl-tests or rccl-tests, finished or not."""
    lines = map(_plain, text.splitlines())
    marks = (_RUN, _HEADING, _RANK, _END)
    return any("nccl-tests version" in line or any(mark.search(line) for mark in marks) for line in lines)


def _plain(line: str) -> str:
    line = _COLOUR.sub("", line[:_LONGEST])
    return quoted[1] if (quoted := _QUOTED.match(line)) else line


@dataclass
class _OpenRun:
    """A run whose end was not read yet, of one output. `starts`: processes that print into it without labels."""

    run: BenchmarkRun
    starts: int = 1
    ends: int = 0
    columns: list[str] = field(default_factory=list)
    only_in_place: bool = False
    cut: tuple[str, str] | None = None  # place and text of a row that lacks its end


class _Reader:
    """The runs of a text, in order of their ends."""

    def __init__(self, place: str, leave: Leave, note: Note) -> None:
        self.place, self.leave, self.note = place, leave, note
        self.open: dict[str, _OpenRun] = {}
        self.named: dict[str, str] = {}
        self.version, self.library = "", "NCCL"
        self.warnings: list[tuple[str, str]] = []

    def runs(self, text: str) -> Iterator[BenchmarkRun]:
        number = 1
        for number, line in enumerate(map(_plain, text.splitlines()), 1):
            yield from self._line(line, f"{self.place}:{number}")
        for key in [*self.open]:
            yield from self._close(key, f"{self.place}:{number}")
        if self.warnings:
            here, first = self.warnings[0]
            self.note(here, f"{len(self.warnings)} warnings or failures of NCCL, the first: {first[:120]}")

    def _line(self, line: str, here: str) -> Iterator[BenchmarkRun]:
        if match := _WARNING.search(line) or _FAILURE.search(line):
            self.warnings.append((here, match[match.re.groups].strip()))
            if match.re is _WARNING and not _CELLS.search(line):
                return
        if match := _LIBRARY.search(line):
            self.version = match[2] or dotted(int(match[1]))
        if line.lstrip().startswith("rccl-tests"):
            self.library = "RCCL"
        if match := _RUN.search(line):
            yield from self._begin(_label(line, match), here)
        elif match := _RANK.search(line):
            if open_run := self._of(_label(line, match)):
                rank, group, process, host, gpu = match.groups()
                open_run.run.devices.append(Device(int(rank), int(group or 0), process, host, gpu))
        elif match := _HEADING.search(line):
            self._heading(match, _label(line, match), here)
        elif match := _END.search(line):
            key = self._key(_label(line, match))
            if key is not None and self.open[key].columns:
                self.open[key].ends += 1
                if self.open[key].ends >= self.open[key].starts:
                    yield from self._close(key, here)
        elif match := _CELLS.search(line):
            self._row(match, _label(line, match), here)
        elif match := _BLOCKING.search(line):
            self.note(here, "blocking calls (-z): the times hold the waiting of the hosts, too")
        elif match := _PLACES.search(line):
            if open_run := self._of(_label(line, match)):
                open_run.only_in_place = "out-of-place" not in line
        elif "concluded" not in line and (match := _TEST.search(line)):
            key = self._key(_label(line, match))
            self.named[_before_hash(line[: match.start()])] = match[1]
            if key is not None and not self.open[key].columns:
                self.open[key].run.test = self.open[key].run.test or match[1]
        elif match := _NUMBERS.search(line):
            self._continued(match[0], self._of(_label(line, match)))

    def _key(self, label: str) -> str | None:
        """The output of a line: that of its label, else the only one."""
        return label if label in self.open else next(iter(self.open)) if len(self.open) == 1 else None

    def _of(self, label: str) -> _OpenRun | None:
        key = self._key(label)
        return None if key is None else self.open[key]

    def _begin(self, label: str, here: str) -> Iterator[BenchmarkRun]:
        open_run = self.open.get(label)
        if open_run and not open_run.columns:
            open_run.starts += 1  # another process that prints into the same output
            return
        yield from self._close(label, here) if open_run else ()
        test = self.named.pop(label, "")
        if not test and len(self.named) == 1:
            (test,) = self.named.values()
        self.open[label] = _OpenRun(BenchmarkRun(here, test))

    def _heading(self, match: re.Match, label: str, here: str) -> None:
        open_run = self._of(label)
        if open_run is None:
            open_run = self.open[label] = _OpenRun(BenchmarkRun(here, self.named.pop(label, "")))
        open_run.columns = match[0].lstrip("# \t").split()
        open_run.run.of_host = "cputime" in open_run.columns
        open_run.run.version, open_run.run.library = self.version, self.library

    def _row(self, match: re.Match, label: str, here: str) -> None:
        open_run = self._of(label)
        if open_run is None or not open_run.columns:
            if re.search(r"(?:\s+\d[\d.e+]*){3}", match[4]):
                self.leave(here, 'no heading "size count type …" is above this row', WHOLE)
            return
        self._drop_cut(open_run)
        text = match[0]
        for host in {device.host for device in open_run.run.devices}:  # a message of NCCL that follows on the same line
            text = re.split(rf"{re.escape(host)}:\d+:\d+ \[\d+\] NCCL ", text)[0]
        if not self._times(text, here, open_run):
            open_run.cut = here, text

    def _continued(self, text: str, open_run: _OpenRun | None) -> None:
        """The rest of a row into which another program printed."""
        if open_run and open_run.cut:
            here, begun = open_run.cut
            if self._times(f"{begun} {text}", here, open_run):
                open_run.cut = None
            else:
                open_run.cut = here, f"{begun} {text}"

    def _drop_cut(self, open_run: _OpenRun) -> None:
        if open_run.cut:
            self.leave(open_run.cut[0], "a row of nccl-tests is cut", WHOLE)
            open_run.cut = None

    def _times(self, text: str, here: str, open_run: _OpenRun) -> bool:
        """Take the times of a row; False: it does not have the columns of the heading."""
        parts = _row_cells(text, open_run.columns)
        if parts is None:
            return False
        (size, dtype, redop), blocks = parts
        in_place = ("1",) if open_run.only_in_place and len(blocks) == 1 else ("0", "1")
        for place, cells in zip(in_place, blocks, strict=False):
            us = cells.get("time") or cells.get("cputime") or "N/A"
            wrong = cells.get("#wrong", "")  # before 2.12 a row had the largest rounding error instead
            numbers = (us, cells.get("algbw", ""), cells.get("busbw", ""), wrong)
            open_run.run.times.append(Time(here, size, dtype, redop, place, *numbers))
        return True

    def _close(self, key: str, here: str) -> Iterator[BenchmarkRun]:
        entry = self.open.pop(key)
        self._drop_cut(entry)
        if entry.ends:
            if entry.ends < entry.starts:
                self.note(here, f"{entry.starts - entry.ends} of {entry.starts} runs in the same output did not end")
            yield entry.run
        elif entry.columns or entry.run.devices:
            problem = 'the output of nccl-tests ends in the middle: "# Avg bus bandwidth" does not follow'
            self.leave(here, problem, WHOLE)


def runs(text: str, place: str, leave: Leave, note: Note) -> Iterator[BenchmarkRun]:
    """The runs of an output that ended. `leave`, `note`: told of what is not used, and of what to know of the rest."""
    return _Reader(place, leave, note).runs(text)


def _row_cells(text: str, columns: list[str]) -> tuple[tuple[str, str, str], list[dict[str, str]]] | None:
    """Size, type and reduction of a row, and the cells of each place by the names of their columns."""
    words, names = text.split(), [name for name in columns if name != _STAMP]
    first = next((column for column, name in enumerate(names) if name not in _LEADING), 0)
    firsts = [column for column, name in enumerate(names) if name == names[first]]
    if len(words) < 3 or not first or not {*_TIMES} & {*names}:
        return None
    size, _, dtype, *rest = words
    redop = ""
    if "redop" in names and rest and re.fullmatch(r"[a-z]\w*", rest[0]):
        redop = rest.pop(0)  # some tests leave it blank
    if "root" in names:
        rest = rest[1:]
    blocks = [names[start:until] for start, until in zip(firsts, [*firsts[1:], len(names)], strict=True)]
    if len(rest) == len(blocks[-1]) < sum(map(len, blocks)) and re.search(rf"\s{{20,}}{re.escape(rest[0])}\s", text):
        return (size, dtype, redop), [*({} for _ in blocks[1:]), dict(zip(blocks[-1], rest, strict=True))]
    total = sum(map(len, blocks))
    if len(rest) < total or (len(rest) > total and _STAMP not in columns):
        return None
    values = iter(rest)
    return (size, dtype, redop), [dict(zip(block, values, strict=False)) for block in blocks]


def _label(line: str, match: re.Match) -> str:
    return _before_hash(line[: match.start()])


def _before_hash(text: str) -> str:
    """What a launcher wrote before a line, without times."""
    return " ".join(_CLOCK.sub(" ", text.partition("#")[0]).split())
