"""Copy a packaged lesson to start from; without NAME, list the lessons."""

import argparse
import os
import re
import shutil
from pathlib import Path

from astrasim_py.core.errors import OutputError, UsageError
from astrasim_py.core.fields import did_you_mean
from astrasim_py.core.files import make_folders, named

_SCHEMA_LINE = re.compile(r"^# yaml-language-server: \$schema=.*$", re.MULTILINE)
SCHEMA = "scenario.schema.json"
_DATA = Path(__file__).resolve().parents[1] / "data"
_LESSONS = _DATA / "lessons"


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME")
    parser.add_argument("folder", nargs="?", default=".", metavar="FOLDER", help="where to; here by default")


def run(args: argparse.Namespace) -> int:
    if args.name is None:
        for name, line in listed():
            print(f"{name:<24} {line}".rstrip())
        return 0
    for path in copy(args.name, args.folder):
        print(path)
    return 0


def listed() -> list[tuple[str, str]]:
    """Name and title of every lesson, by name."""
    from astrasim_py.core.document import read_document

    lessons = []
    for path in sorted(_LESSONS.glob("*.yaml")):
        title = read_document(path).get("title")
        lessons.append((path.stem, str(title.data) if title is not None else ""))
    return lessons


def copy(name: str, target: str | os.PathLike) -> list[Path]:
    """Copy a lesson, the files that it names, and the schema for editors; returns the paths. Raises UsageError: no such
    lesson. Raises OutputError: a file is there already, or cannot be written.
    """
    from astrasim_py.preparation.inputs import input_digests
    from astrasim_py.scenario.expand import expand
    from astrasim_py.scenario.load import load_scenario

    names = sorted(path.stem for path in _LESSONS.glob("*.yaml"))
    stem = name.removesuffix(".yaml")
    if stem not in names:
        raise UsageError(f"new {name}"[:80], "there is no such lesson", did_you_mean(stem, names))
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
