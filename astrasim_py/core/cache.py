"""The folder in which what is costly to find out is kept from run to run."""

from __future__ import annotations

import os
from pathlib import Path


def cache_folder() -> Path | None:
    """``ASTRASIM_CACHE``, else the user's cache folder; None where there is none.

    ``ASTRASIM_CACHE=`` (empty) turns keeping off.
    """
    chosen = os.environ.get("ASTRASIM_CACHE")
    if chosen is not None:
        return Path(chosen) if chosen else None
    base = os.environ.get("XDG_CACHE_HOME")
    if base:
        return Path(base) / "astrasim_py"
    try:
        return Path.home() / ".cache" / "astrasim_py"
    except RuntimeError:
        return None
