"""The state of a search, from which the same command goes on: makespans of candidates that were simulated."""

import json
import os
from collections.abc import Mapping
from pathlib import Path

from astrasim_py.core.digest import digest
from astrasim_py.core.edition import edition
from astrasim_py.core.errors import OutputError, UsageError
from astrasim_py.core.files import named, read_regular, write_file
from astrasim_py.preparation.inputs import input_digests
from astrasim_py.results.store import DECIDING
from astrasim_py.scenario.expand import Point

STATE = "state.json"
#: Largest state that is read, bytes.
_MOST = 2**28


def asked_of(point: Point, kinds: tuple[str, ...], seed: int, engine: str) -> dict[str, object]:
    """What a search is of: with equal answers it is the same, and can go on."""
    return {
        "version": edition("optimizer", *DECIDING),
        "scenario": digest({"point": dict(point.config), "inputs": input_digests(point)}),
        "over": list(kinds),
        "seed": seed,
        "engine": engine,
    }


def load_state(folder: Path, arguments: Mapping[str, object]) -> dict[str, int]:
    """Makespans by key of a candidate that an earlier run of the same search left; none in a new or empty folder.

    Raises UsageError: the folder has other content, or the state of another search.
    """
    path = named(folder, OutputError) / STATE
    if not os.path.lexists(folder):
        return {}
    try:
        names = os.listdir(folder)
    except OSError as error:
        raise OutputError(str(folder), f"cannot be listed: {error.strerror}", "name a folder") from None
    if STATE not in names:
        if names:
            raise UsageError("--out", f"{folder} has other content", "name a new or an empty folder")
        return {}
    remedy = "name another folder"
    try:
        state = json.loads(read_regular(path, _MOST, UsageError, what="the state of a search", remedy=remedy))
        before, makespans = state["asked"], state["makespans"]
        if state["sha256"] != _sha256(before, makespans):
            raise ValueError
    except (ValueError, KeyError, TypeError, RecursionError):
        raise UsageError(str(path), "is not the state of a search, or was edited", remedy) from None
    if before != dict(arguments):
        differ = [key for key in arguments if not isinstance(before, dict) or before.get(key) != arguments[key]]
        problem = f"{folder} holds a search with another {' and '.join(differ) or 'version'}"
        raise UsageError("--out", problem, "repeat its arguments to go on, or name another folder")
    return makespans


def _sha256(arguments: Mapping[str, object], makespans: Mapping[str, int]) -> str:
    return digest({"asked": arguments, "makespans": makespans})


def save_state(folder: Path, arguments: Mapping[str, object], makespans: Mapping[str, int]) -> None:
    """Write the state. Raises OutputError."""
    text = json.dumps({"asked": arguments, "makespans": makespans, "sha256": _sha256(arguments, makespans)}, indent=0)
    write_file(folder / STATE, text.encode(), make_folder=True, sync=False)
