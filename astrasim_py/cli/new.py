"""Copy a packaged lesson to start from; without NAME, say which there are."""

import argparse
import os
import re
import shlex
import shutil
from collections.abc import Iterable, Iterator
from pathlib import Path

from astrasim_py.cli.options import format_option
from astrasim_py.cli.output import printed
from astrasim_py.core.errors import OutputError, UsageError
from astrasim_py.core.fields import did_you_mean
from astrasim_py.core.files import make_folders, named

_SCHEMA_LINE = re.compile(r"^# yaml-language-server: \$schema=.*$", re.MULTILINE)
#: The number of the rank in names of traces.
_RANK = re.compile(r"\.\d+\.(?=et(\.gz)?$)")
SCHEMA = "scenario.schema.json"
_DATA = Path(__file__).resolve().parents[1] / "data"
_LESSONS = _DATA / "lessons"

#: Lessons for the first hour.
FIRST = ("first_steps", "latency_or_bandwidth", "ring_vs_torus", "ddp_overlap")
#: Group → what its lessons are about, and their names, as docs/lessons.md has them.
GROUPS = {
    "collectives": (
        "algorithms of collectives, and the networks that they run on",
        [
            "first_steps",
            "latency_or_bandwidth",
            "crossover",
            "ring_vs_torus",
            "all_to_all_torus",
            "hierarchical_dgx",
            "themis",
            "overlap",
            "in_network",
            "hgx_h100",
            "real_machines",
            "find_the_bug",
            "synthesized",
        ],
    ),
    "training": (
        "steps of language and recommendation models",
        [
            "ddp_overlap",
            "step_at_scale",
            "parallelism",
            "memory_or_network",
            "comet_transformer_1t",
            "comet_break_even",
            "comet_clusters",
            "comet_dlrm",
            "from_pytorch",
            "synthesized_training",
            "synthesized_training_256",
        ],
    ),
    "networks": (
        "failures, and jobs that share a network",
        [
            "failures",
            "link_flap",
            "fair_or_fifo",
            "noisy_neighbour",
            "neighbours_over_time",
            "packed_or_random",
            "open_loop",
        ],
    ),
}


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME", help="a lesson to copy, or a group to list")
    parser.add_argument("folder", nargs="?", default=".", metavar="FOLDER", help="where to; here by default")
    parser.add_argument("--all", action="store_true", help="list every lesson")
    format_option(parser)


def run(args: argparse.Namespace) -> int:
    if args.all and args.name is not None:
        raise UsageError("--all", f"lists every lesson, and {args.name} is one name", "write one of the two")
    if args.all:
        _print_lessons(lesson_names(), args.format)
    elif args.name is None:
        groups = [{"group": group, "about": about, "lessons": names} for group, (about, names) in GROUPS.items()]
        if printed(args.format, groups):
            return 0
        print("Lessons to begin with:")
        _print_lessons(FIRST, "text")
        print("\nGroups:")
        for group, (about, members) in GROUPS.items():
            print(f"{group:<24} {len(members)} lessons: {about}")
        print("\nnew NAME [FOLDER] copies a lesson, new GROUP lists a group, new --all lists every lesson.")
    elif args.name in GROUPS:
        _print_lessons(GROUPS[args.name][1], args.format)
    else:
        files = [*map(str, copy(args.name, args.folder))]
        if not printed(args.format, {"lesson": args.name.removesuffix(".yaml"), "files": files}):
            print("\n".join(_in_sets(files)))
            print(f"run it with {shlex.join(['astrasim-py', files[0]])}")
    return 0


def _in_sets(files: Iterable[str]) -> Iterator[str]:
    """A line for each file, and one for each set of files that differ in the number of their rank."""
    sets: dict[str, list[str]] = {}
    for file in files:
        sets.setdefault(_RANK.sub(".", file), []).append(file)
    for members in sets.values():
        first, *others = sorted(members, key=lambda file: (len(file), file))
        yield f"{first} … {Path(others[-1]).name} ({len(members)} files)" if others else first


def _print_lessons(names: Iterable[str], form: str) -> None:
    rows = [{"lesson": name, "about": _title(name)} for name in names]
    if not printed(form, rows):
        for row in rows:
            print(f"{row['lesson']:<24} {row['about']}".rstrip())


def lesson_names() -> list[str]:
    return sorted(path.stem for path in _LESSONS.glob("*.yaml"))


def _title(name: str) -> str:
    from astrasim_py.core.document import read_document

    title = read_document(_LESSONS / f"{name}.yaml").get("title")
    return str(title.data) if title is not None else ""


def listed() -> list[tuple[str, str]]:
    """Name and title of every lesson, by name."""
    return [(name, _title(name)) for name in lesson_names()]


def copy(name: str, target: str | os.PathLike) -> list[Path]:
    """Copy a lesson, the files that it names, and the schema for editors; returns the paths. Raises UsageError: no such
    lesson. Raises OutputError: a file is there already, or cannot be written.
    """
    from astrasim_py.preparation.inputs import input_digests
    from astrasim_py.scenario.expand import expand
    from astrasim_py.scenario.load import load_scenario

    names, stem = lesson_names(), name.removesuffix(".yaml")
    if stem not in names:
        remedy = did_you_mean(stem, (*names, *GROUPS))
        if remedy.startswith("write one of"):
            remedy = f"new --all lists them, and new GROUP a group: {', '.join(GROUPS)}"
        raise UsageError(f"new {name}"[:80], "there is no such lesson", remedy)
    lesson = _LESSONS / f"{stem}.yaml"
    files = {file: None for point in expand(load_scenario(lesson)) for file in input_digests(point)}
    text = _SCHEMA_LINE.sub(f"# yaml-language-server: $schema={SCHEMA}", lesson.read_text("utf-8"), count=1)
    target = named(target, OutputError)
    paths = [target / lesson.name, target / SCHEMA, *(target / file for file in files)]
    for path in paths:
        if path.name != SCHEMA and os.path.lexists(path):
            raise OutputError(str(path), "is there already", "name another folder")
    try:
        for path in paths:
            make_folders(path.parent)
        paths[0].write_text(text, "utf-8")
        shutil.copyfile(_DATA / "schema" / SCHEMA, paths[1])
        for file in files:
            shutil.copyfile(_LESSONS / file, target / file)
    except OSError as error:
        raise OutputError(str(target), f"cannot be written: {error.strerror}", "name another folder") from None
    return paths
