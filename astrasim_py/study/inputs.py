"""Digests of the files that a point reads: a changed file makes another point."""

from __future__ import annotations

import os
import re
from collections.abc import Mapping, MutableMapping
from contextlib import suppress
from pathlib import Path

from astrasim_py.core.digest import file_digest
from astrasim_py.core.errors import TraceError
from astrasim_py.core.fields import named_files
from astrasim_py.scenario.expand import Point

_OF_A_PREFIX = re.compile(r"\.\d+\.et(\.gz)?")


def input_digests(
    point: Point, known: MutableMapping[tuple[str, str], Mapping[str, str]] | None = None
) -> dict[str, str]:
    """SHA-256 of every file that a point reads, by its path relative to the scenario.

    A name may be a prefix: ``traces/gpt3`` of ``traces/gpt3.0.et``, ``traces/gpt3.1.et.gz`` … Files that are
    missing or cannot be read are left out; preparing the point says what is wrong with them.

    `known`: shared by the points of one run, so that each name is looked up once.
    """
    known = {} if known is None else known
    found: dict[str, str] = {}
    for _, name in named_files(list(vars(point.spec).values())):
        key = (point.folder, name.file)
        if key not in known:
            known[key] = _digests(*key)
        found.update(known[key])
    return dict(sorted(found.items()))


def _digests(folder: str, name: str) -> dict[str, str]:
    path, found = Path(folder, name), {}
    with suppress(OSError, ValueError):
        for file in sorted(path.parent.iterdir()):
            rest = file.name.removeprefix(path.name)
            if file.name.startswith(path.name) and (not rest or _OF_A_PREFIX.fullmatch(rest)):
                with suppress(TraceError):
                    found[Path(os.path.relpath(file, folder)).as_posix()] = file_digest(file)
    return found
