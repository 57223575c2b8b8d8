"""Options and messages that several verbs share."""

from __future__ import annotations

import argparse
import os
import re
import shutil
import sys
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, TypeVar

from astrasim_py.core.choices import AUTO, ENGINES, FOLDED, LEVELS
from astrasim_py.core.errors import AstraError, UsageError
from astrasim_py.core.units import parse_time

if TYPE_CHECKING:
    from astrasim_py.core.point_names import PointName
    from astrasim_py.report.row_selection import Selection
    from astrasim_py.results.model import Row, Summary

T = TypeVar("T")
R = TypeVar("R")
#: Hops of messages of a point that is run again, to be shown, within a minute.
_MOST_REPLAYED = 5_000_000


#: Options → keywords of `add_argument`.
Options = Mapping[str, Mapping[str, Any]]
#: Options that mean the same in every verb that has them; others of this kind are in `cli.shared_options`.
SHARED: Options = {
    "--set": {"action": "append", "default": [], "metavar": "KEY=VALUE", "help": "override any key; repeatable"},
    "--allow-outside": {"action": "store_true", "help": "files may lie outside the scenario's folder"},
    "--allow-code": {"action": "store_true", "help": "the scenario may name Python files, which are run"},
    "--engine": {
        "choices": ENGINES, "help": "auto: the one that costs less; both: runs both engines and compares every record"
    },
    "--out": {"metavar": "FOLDER", "default": "results", "help": "folder of results (results)"},
    "--record": {"choices": LEVELS, "help": "how much to record"},
    "--timeline": {"action": "store_true", "help": "also write timeline.json for Perfetto"},
    "--ranks": {"metavar": "LIST", "help": "ranks, e.g. 0-3,6"},
    "--max-events": {"type": int, "metavar": "N", "help": "give up a point after so many events"},
    "--max-sim-time": {"metavar": "T", "help": 'give up a point after e.g. "10 s" of simulated time'},
    "--jobs": {"type": int, "metavar": "N", "help": "worker processes (one per core)"},
    "--cluster": {"metavar": "ADDRESS", "help": "workers of a Dask scheduler, e.g. tcp://host:8786"},
    "--fresh": {"action": "store_true", "help": "compute again what is stored"},
    "--strict": {"action": "store_true", "help": "a warning is an error; a hint is not"},
    "--fold": {"action": "store_true", "default": None, "help": "simulate one rank for all that do the same"},
    "--quiet": {
        "action": "store_true", "help": "no progress, no notes; of run and astra-sim no summary unless --format asks"
    },
    "--where": {
        "action": "append", "default": [], "metavar": "CONDITION",
        "help": 'only rows that meet it: "size>=1 MiB", name=t*, ranks=2,8; repeatable',
    },
}  # fmt: skip


def add(
    parser: argparse._ActionsContainer, *names: str, note: str = "", table: Options = SHARED, **changes: Any
) -> None:
    """Add shared options. `note`: what holds in this verb, in parentheses behind the help of each. `changes`: further
    keywords of `add_argument`.
    """
    for name in names:
        keywords = {**table[name], **changes}
        if note:
            keywords["help"] = f"{re.sub(r' [(][^()]*[)]$', '', keywords['help'])} ({note})"
        parser.add_argument(*(("-o", name) if name == "--output" else (name,)), **keywords)


def engine_option(parser: argparse.ArgumentParser, default: str | None = AUTO) -> None:
    """``--engine``; no default: the scenario's."""
    add(parser, "--engine", note="the scenario's, else auto" if default is None else default, default=default)


def format_option(parser: argparse._ActionsContainer, default: str | None = "text") -> None:
    """``--format`` and ``--json``; None as default tells that nothing was asked for."""
    forms = parser.add_mutually_exclusive_group()
    forms.add_argument("--format", choices=FORMATS, default=default, help="of the result on stdout (text)")
    forms.add_argument("--json", action="store_const", const="json", dest="format", help="short for --format json")


#: Forms of a result, and those that a person reads.
FORMATS = ("text", "json", "csv", "markdown")
TABLES = (None, "text")
#: How a scenario is named whose points can be chosen.
SCENARIO = "SCENARIO.yaml[@key=value,…]"


def table_options(parser: argparse.ArgumentParser) -> None:
    """Which rows of a table, in which order and form."""
    add(parser, "--where")
    parser.add_argument("--sort", metavar="COLUMN", help="order of the rows; --sort=-COLUMN: largest first")
    parser.add_argument("--top", type=int, metavar="N", help="only the first N rows")
    format_option(parser, default=None)


def selection_of(args: argparse.Namespace) -> Selection | None:
    """The rows that `table_options` ask for; None: all, in their order. Raises UsageError."""
    if not args.where and args.sort is None and args.top is None:
        return None
    from astrasim_py.report.row_selection import parse_selection

    check_positive(args, "top")
    return parse_selection(args.where, args.sort, args.top)


def terminal_width() -> int | None:
    """Columns of the terminal on stdout, or of COLUMNS; None where a file or a program reads."""
    if not os.environ.get("COLUMNS", "").isdecimal() and not sys.stdout.isatty():
        return None
    return max(shutil.get_terminal_size().columns, 1)


def scenario_options(parser: argparse.ArgumentParser) -> None:
    parser.add_argument(
        "scenarios",
        nargs="+",
        metavar=SCENARIO,
        help="scenario files, or scenarios that were run; behind @: only the points with these swept values",
    )
    add(parser, "--set", "--allow-outside", "--allow-code")


def scenario_files(words: Sequence[str], out: str, codes: list[int]) -> dict[str, list[PointName]]:
    """Scenario files → the names that choose points of each, none where all are meant. The errors of a word are
    printed, their exit code goes to `codes`. Raises UsageError: a word is no name.
    """
    if all("@" not in word and os.path.isfile(word) for word in words):
        return {word: [] for word in words}
    from astrasim_py.inspection.point_choice import by_file, point_names, scenario_file

    return by_file(each(point_names(words, out), lambda name: scenario_file(name, out), codes))


def record_options(parser: argparse.ArgumentParser, default: str | None = None) -> None:
    add(parser, "--out")
    add(parser, "--record", default=default)
    add(parser, "--timeline")
    add(parser, "--ranks", note="of the timeline; all by default, up to 100 MB")
    add(parser, "--max-events", "--max-sim-time")


def timeline_of(args: argparse.Namespace) -> bool | tuple[int, ...]:
    """What ``--timeline`` and ``--ranks`` ask for. Raises UsageError."""
    if args.ranks is None:
        return args.timeline
    if not args.timeline:
        raise UsageError("--ranks", "chooses ranks of the timeline", "add --timeline")
    from astrasim_py.cli.values import number_list

    return tuple(sorted(dict.fromkeys(number_list(args.ranks, "--ranks"))))


def check_positive(args: argparse.Namespace, *names: str) -> None:
    """Refuse numbers below 1 of options that count something. Raises UsageError."""
    for name in names:
        value = getattr(args, name)
        if value is not None and value < 1:
            raise UsageError(f"--{name.replace('_', '-')}", f"{value} is less than 1", "write 1 or more")


def limits_of(args: argparse.Namespace) -> dict[str, Any]:
    """The limits that are given, as keywords of `astrasim_py.system.machine_models.Limits`. Raises UsageError,
    UnitError.
    """
    check_positive(args, "max_events")
    limits = {}
    if args.max_events is not None:
        limits["max_events"] = min(args.max_events, 2**62)  # no run has more
    if args.max_sim_time is not None:
        from astrasim_py.cli.spelling import quantity

        limits["max_sim_time_ps"] = quantity(parse_time, args.max_sim_time, "--max-sim-time", "10 ms")
    return limits


def complain(lines: Iterable[str]) -> None:
    """Lines for a person, on stderr."""
    try:
        for line in lines:
            print(f"astrasim-py: {line}", file=sys.stderr)
    except OSError:
        return  # stderr is closed; the exit code remains


def engines_text(ran: Iterable[str | None] | Mapping[str, int]) -> str:
    """A line that says which engine ran how often; empty where none was run.

    >>> engines_text(["simpy", "compiled", "compiled", None])
    'engines: compiled 2, simpy 1\\n'
    """
    counts = {name: count for name, count in Counter(ran).items() if name is not None}
    if len(counts) < 2:
        return "".join(f"engine: {name}\n" for name in counts)
    return f"engines: {', '.join(f'{name} {counts[name]}' for name in sorted(counts))}\n"


def fold_text(rows: Iterable[Row], summaries: Iterable[Summary | None]) -> str:
    """A line that says whether folded results are exact, and if not, by how much they may be off."""
    texts: list[str] = []
    most, estimates = 0.0, 0
    for row, summary in zip(rows, summaries, strict=True):
        if not summary or not (row.engine or "").endswith(FOLDED):
            continue
        fold = summary.fold
        texts.append(fold.text if fold else "exact; every rank does what the first one does")
        if fold and not fold.exact:
            estimates += 1
            most = max(most, fold.deviation / max(summary.makespan_ps, 1))
    if len(set(texts)) <= 1:
        return f"fold: {texts[0]}\n" if texts else ""
    note = f", {estimates} are estimates, off by {100 * most:.{2 if most < 1 else 4}g} % at most" if estimates else ""
    return f"fold: {len(texts) - estimates} of {len(texts)} points are exact{note}\n"


def trainings_text(rows: Iterable[Row]) -> str:
    """Lines that say which software and state of the machine the times of trainings hold for."""
    listed = list(rows)
    if not any(row.trainings for row in listed):
        return ""
    from astrasim_py.report.training import trainings_lines

    return "".join(f"{line}\n" for line in trainings_lines(listed))


def name_of_results(folder: str | os.PathLike[str], out: str) -> str:
    """The name by which the results in a folder are found without further options."""
    path = os.path.normpath(folder)
    name = os.path.basename(path)
    # A name is looked for in the folder of all results; a path says itself where it is.
    is_plain = os.path.dirname(path) == out == "results" and not os.path.lexists(name) and name[0] != "-"
    return name if is_plain else path


def look_text(folder: str | os.PathLike[str], out: str, rows: Iterable[Row], left_out: int = 0) -> str:
    """A line with the commands that show a stored result and say where its time went; empty where none is stored. They
    are of the point farthest from its bound that can be replayed; where none can, the line says how to list them.
    `left_out`: points of the scenario besides these.
    """
    from astrasim_py.core.point_names import PointName, shell_word

    stored = [row for row in rows if row.status in ("done", "stuck", "limit")]
    stored.sort(key=lambda row: (row.status != "done", row.efficiency or 1, -(row.time_ns or 0)))
    if not stored or not os.path.isdir(folder):
        return ""
    name = name_of_results(folder, out)
    row = next((row for row in stored if (row.message_hops or 0) <= _MOST_REPLAYED), None)
    if row is None:
        return f"look: results list {shell_word(name)}\n"
    if row is stored[0] and not left_out:
        return f"look: view {shell_word(name)} · why: explain {shell_word(name)} --worst\n"
    text = shell_word(str(PointName(name, {key: (value,) for key, value in row.sweep.items()})))
    return f"look: view {text} · why: explain {text}\n"


def each(items: Iterable[T], work: Callable[[T], R], codes: list[int]) -> Iterator[R]:
    """Results of `work`; the errors of an item are printed, their exit code goes to `codes`, and the next follows."""
    for item in items:
        try:
            yield work(item)
        except AstraError as error:
            complain(error.lines())
            codes.append(error.exit_code)
