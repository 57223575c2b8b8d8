"""The page for users of ASTRA-sim names every quirk, flag and key."""

from __future__ import annotations

import argparse
import re

from astrasim_py.astra_sim import configs, planner, quirks
from astrasim_py.cli import astra_sim as verb


def test_the_page_is_complete(repo):
    page = (repo / quirks.PAGE).read_text("utf-8")
    parser = argparse.ArgumentParser(add_help=False)
    verb.arguments(parser)
    flags = {a.option_strings[0] for a in parser._actions} - {
        "--engine", "--out", "--record", "--timeline", "--max-events", "--max-sim-time", "--quiet", "--format"
    }  # fmt: skip
    ids = {*quirks.QUIRKS, *(name.replace("_", "-") for name in planner.QUIRKS)}
    keys = {key for key in configs._SYSTEM_KEYS if "implementation" not in key or "per-node" in key}
    words = {*flags, *ids, *keys, *configs._MEMORY_KINDS, *configs.KINDS, *(f"{c}-" for c in configs.COLLECTIVES)}
    assert len(ids) >= 25 and len(flags) >= 14
    assert not sorted(w for w in words if not re.search(rf"(?<![\w-]){re.escape(w)}", page))
