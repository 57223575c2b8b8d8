"""Limits of a test that another process on the machine cannot make it miss: CPU time, and very much wall-clock time.

Compiling counts neither: it is done once, in whichever test is first. A test that exceeds a limit fails with the stacks
of all threads. One that is held in compiled code cannot be failed: its process ends with its stacks, as does a process
that it started and that takes as much CPU time.
"""

from __future__ import annotations

import faulthandler
import math
import signal
import sys
import tempfile
import time

import pytest

try:
    import resource
except ImportError:  # not on every system
    resource = None

from astrasim_py.core import compiling
from astrasim_py.core.compiling import cpu_s

#: CPU seconds, and wall-clock seconds, of a phase of a test: set up, call, tear down.
CPU_S, WALL_S = 300, 1800
#: Seconds that a test waits for another process, or for an event: on a busy machine all takes many times as long.
WAIT_S = 900
#: Seconds after a limit before a process ends that does not react to it.
_GRACE_S = 60
#: Seconds between looks at a compilation that has passed a limit.
_AGAIN_S = 5


def _compiling() -> bool:
    return compiling._paused[1] is not None


def stacks() -> str:
    with tempfile.TemporaryFile("w+") as file:
        faulthandler.dump_traceback(file, all_threads=True)
        file.seek(0)
        return file.read()


class OverLimit(BaseException):
    """A test took too long. No Exception: Hypothesis would try it again, with smaller examples."""


class Limits:
    """The limits of one phase, as a context manager."""

    def __init__(self, cpu_s: float = CPU_S, wall_s: float = WALL_S) -> None:
        self.cpu_s, self.wall_s = cpu_s, wall_s

    def __enter__(self) -> Limits:
        self.cpu_began, self.wall_began = cpu_s(), time.monotonic()
        self.before = {number: signal.signal(number, self._over) for number in (signal.SIGPROF, signal.SIGALRM)}
        self._arm(self.cpu_s, self.wall_s)
        return self

    def _arm(self, cpu: float, wall: float) -> None:
        signal.setitimer(signal.ITIMER_PROF, cpu)
        signal.setitimer(signal.ITIMER_REAL, wall)
        faulthandler.dump_traceback_later(wall + _GRACE_S, exit=True, file=sys.__stderr__)
        if resource is not None:
            _, most = resource.getrlimit(resource.RLIMIT_CPU)
            resource.setrlimit(resource.RLIMIT_CPU, (math.ceil(time.process_time() + cpu + _GRACE_S), most))

    def _over(self, number: int, frame: object) -> None:
        cpu, wall = cpu_s() - self.cpu_began, time.monotonic() - self.wall_began
        if _compiling() or (cpu < self.cpu_s and wall < self.wall_s):
            self._arm(max(self.cpu_s - cpu, _AGAIN_S), max(self.wall_s - wall, _AGAIN_S))
            return
        self._disarm()
        raise OverLimit(f"{cpu:.0f} of {self.cpu_s:g} CPU seconds, {wall:.0f} of {self.wall_s:g} seconds\n{stacks()}")

    def _disarm(self) -> None:
        signal.setitimer(signal.ITIMER_PROF, 0)
        signal.setitimer(signal.ITIMER_REAL, 0)
        faulthandler.cancel_dump_traceback_later()
        if resource is not None:
            _, most = resource.getrlimit(resource.RLIMIT_CPU)
            resource.setrlimit(resource.RLIMIT_CPU, (most, most))

    def __exit__(self, *error: object) -> None:
        self._disarm()
        for number, handler in self.before.items():
            signal.signal(number, handler)


class Plugin:
    """Puts every phase of every test under the limits."""

    def pytest_configure(self) -> None:
        if resource is not None:
            faulthandler.register(signal.SIGXCPU, file=sys.__stderr__, all_threads=True, chain=True)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_setup(self):
        with Limits():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_call(self):
        with Limits():
            return (yield)

    @pytest.hookimpl(wrapper=True)
    def pytest_runtest_teardown(self):
        with Limits():
            return (yield)
