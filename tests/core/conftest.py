"""Modules of compiled functions, written and imported by tests."""

from __future__ import annotations

import importlib
import sys

import pytest

from astrasim_py.core import compiling


@pytest.fixture
def writer(tmp_path, monkeypatch):
    """Makes `load` of the texts of a helper module (with ``{step}``) and of one with kernels.

    `load` writes the modules and imports them as a new process would; what was said is in `load.said`.
    """
    code = tmp_path / "code"
    code.mkdir()
    monkeypatch.syspath_prepend(str(code))
    monkeypatch.setenv("ASTRASIM_CACHE", str(tmp_path / "cache"))
    # Modules differ in seconds that bytecode does not tell apart.
    monkeypatch.setattr(sys, "dont_write_bytecode", True)
    said: list[str] = []
    monkeypatch.setattr(compiling, "announce", said.append)
    written: list[str] = []

    def forget():
        for name in written:
            sys.modules.pop(name, None)

    def make(prefix: str, helper: str, kernel: str):
        written.extend((f"{prefix}_helper", f"{prefix}_kernel"))

        def load(step: int = 1):
            (code / f"{prefix}_helper.py").write_text(helper.format(step=step))
            (code / f"{prefix}_kernel.py").write_text(kernel)
            importlib.invalidate_caches()
            forget()
            return importlib.import_module(f"{prefix}_kernel")

        load.said, load.code = said, code
        return load

    yield make
    forget()
