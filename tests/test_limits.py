"""A test that never ends is ended with its stacks, by its CPU time; compiling and a busy machine end none."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

HERE = Path(__file__).parent
HEAD = f"""
import itertools, os, sys, time
sys.path[:0] = [{str(HERE)!r}, {str(HERE.parent)!r}]
import limits
from limits import Limits, OverLimit, Plugin
limits._GRACE_S, limits._AGAIN_S = 1, 0.05
Plugin().pytest_configure()

def never_ends():
    while True:
        pass
"""


def run(code: str) -> subprocess.CompletedProcess:
    return subprocess.run([sys.executable, "-c", HEAD + code], capture_output=True, text=True, timeout=600)


@pytest.mark.slow
def test_what_takes_too_long_fails_with_its_stack():
    done = run("""
for limit, work in (({"cpu_s": 0.1}, never_ends), ({"wall_s": 0.1}, lambda: time.sleep(60))):
    try:
        with Limits(**limit):
            work()
        print("no limit")
    except OverLimit as error:
        print(str(error))
with Limits(wall_s=0.1):
    pass
time.sleep(0.3)
with Limits(cpu_s=0.05):
    time.sleep(0.3)  # others had the processor
print("went on")
""")
    assert done.returncode == 0 and done.stdout.endswith("went on\n"), done.stderr
    assert "no limit" not in done.stdout and "in never_ends" in done.stdout and "of 0.1 seconds" in done.stdout


@pytest.mark.slow
def test_compiling_is_in_no_limit():
    done = run("""
from astrasim_py.core import compiling
with Limits(cpu_s=0.2, wall_s=1000):
    with compiling.clocks_stopped():
        end = time.process_time() + 1
        while time.process_time() < end:
            pass
print("compiled")
try:
    with Limits(cpu_s=0.2):
        never_ends()
except OverLimit:
    print("and limited")
""")
    assert done.stdout == "compiled\nand limited\n", done.stderr


@pytest.mark.slow
@pytest.mark.parametrize(
    "hung",
    ["sum(itertools.repeat(0))", "os.system(f\"{sys.executable} -c 'while True: pass'\"); sum(itertools.repeat(0))"],
    ids=["here", "in a child"],
)
def test_compiled_code_that_never_returns_ends_with_its_stack(hung):
    done = run(f"""
def held():
    {hung}
with Limits(cpu_s=1):
    held()
print("went on")
""")
    assert done.returncode < 0 and "went on" not in done.stdout
    assert "in held" in done.stderr
