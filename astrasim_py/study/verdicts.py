"""Verdicts on algorithms, kept in the user's cache folder by content, so that each is verified once."""

from __future__ import annotations

import json
import os
from dataclasses import asdict, fields
from importlib.metadata import version
from pathlib import Path

from astrasim_py.collectives.algorithm import Algorithm
from astrasim_py.collectives.verify import Verdict, verify
from astrasim_py.core.cache import cache_folder
from astrasim_py.core.digest import digest

#: Counts up when verification finds more, or says it otherwise: what was kept before is then verified again.
_EDITION = 2


def kept_verdict(algorithm: Algorithm, content: object) -> Verdict:
    """The verdict on an algorithm read from files, from the cache where the same content was verified before.

    Parameters
    ----------
    algorithm : Algorithm
    content : object
        What tells its files apart (their digests); see `astrasim_py.core.digest.digest`.

    Returns
    -------
    Verdict
        Only what was found correct, or could not be decided, is kept. A cache that cannot be read or written is
        passed over.
    """
    folder = cache_folder()
    if folder is None:
        return verify(algorithm)
    contract = (algorithm.collective, algorithm.root, algorithm.in_place, algorithm.ranks)
    contract += (algorithm.protocol, algorithm.contract.to_text() if algorithm.contract else None)
    path = folder / "verdicts" / f"{digest((version('astrasim-py'), _EDITION, content, contract))}.json"
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        found |= {key: tuple(found[key]) for key in ("problems", "warnings")}
        if found.keys() == {field.name for field in fields(Verdict)} and found["correct"] is not False:
            return Verdict(**found)
    except (OSError, ValueError, KeyError, TypeError):
        pass
    verdict = verify(algorithm)
    if verdict.ok is not False:
        _keep(path, verdict)
    return verdict


def _keep(path: Path, verdict: Verdict) -> None:
    temporary = path.with_name(f"{path.name}.{os.getpid()}")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        temporary.write_text(json.dumps(asdict(verdict)), encoding="utf-8")
        os.replace(temporary, path)
    except OSError:
        temporary.unlink(missing_ok=True)
