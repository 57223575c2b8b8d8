"""Verdicts on algorithms, kept in the user's cache folder by content, so that each is verified once."""

from __future__ import annotations

import json
from dataclasses import asdict, fields
from importlib.metadata import version

from astrasim_py.core.cache import cache_file, cached
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.verification.verifier import Verdict, verify

#: Counts up when verification finds more, or says it otherwise: what was kept before is then verified again.
_EDITION = 2


def kept_verdict(algorithm: Algorithm, content: object) -> Verdict:
    """The verdict on an algorithm read from files, from the cache where the same content was verified before.

    `content`: what tells its files apart (their digests); see `astrasim_py.core.digest.digest`. Returns only what was
    found correct, or could not be decided, is kept. A cache that cannot be read or written is passed over.
    """
    contract = (algorithm.collective, algorithm.root, algorithm.in_place, algorithm.ranks)
    contract += (algorithm.protocol, algorithm.contract.to_text() if algorithm.contract else None)
    path = cache_file("verdicts", (version("astrasim-py"), _EDITION, content, contract), ".json")
    return cached(path, lambda: verify(algorithm), load=_load, dump=_dump)


def _load(data: bytes) -> Verdict | None:
    found = json.loads(data)
    found |= {key: tuple(found[key]) for key in ("problems", "warnings")}
    if found.keys() != {field.name for field in fields(Verdict)} or found["correct"] is False:
        return None
    return Verdict(**found)


def _dump(verdict: Verdict) -> bytes | None:
    return None if verdict.ok is False else json.dumps(asdict(verdict)).encode()
