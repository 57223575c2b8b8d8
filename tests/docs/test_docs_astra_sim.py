"""The page for users of ASTRA-sim names every quirk, flag, key and word that the front end knows."""

from __future__ import annotations

import argparse
import re

import pytest

from astrasim_py.astra_sim import configs, planner, quirks
from astrasim_py.cli import astra_sim


@pytest.fixture(scope="module")
def text(repo):
    assert repo.joinpath(quirks.PAGE).is_file()
    return repo.joinpath(quirks.PAGE).read_text("utf-8")


def section(text: str, title: str) -> str:
    return text.split(f"\n## {title}\n", 1)[1].split("\n## ", 1)[0]


def test_page_and_tables_have_the_same_quirks(text):
    known = {*quirks.QUIRKS, *(name.replace("_", "-") for name in planner.QUIRKS)}
    listed = re.findall(r"^\| `([a-z-]+)` \|", section(text, "Quirks"), re.MULTILINE)
    assert len(listed) == len(set(listed))
    assert set(listed) == known


def test_every_flag_is_described(text):
    parser = argparse.ArgumentParser(add_help=False)
    astra_sim.arguments(parser)
    flags = {max(action.option_strings, key=lambda name: ("_" not in name, len(name))) for action in parser._actions}
    assert len(flags) > 15
    assert sorted(flag for flag in flags if f"`{flag}" not in section(text, "Flag by flag")) == []


def test_every_key_of_every_file_is_described(text):
    files = section(text, "File by file")
    keys = {*configs._SYSTEM_KEYS, *configs.DEAD_KEYS, *configs.OUTPUT_KEYS, *configs._MEMORY_KINDS}
    keys |= {"topology", "npus_count", "bandwidth", "latency"}
    keys |= {"memory-type", "remote-mem-latency", "remote-mem-bw", "num-nodes", "num-npus-per-node"}
    assert sorted(key for key in keys if f"`{key}`" not in files) == []
    assert sorted(kind for kind in configs.KINDS if kind not in files) == []
