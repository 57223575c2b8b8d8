"""Run independent tasks in worker processes of this machine. One that dies takes only its own task with it."""

import contextlib
import multiprocessing
import os
import signal
import sys
import threading
from collections import deque
from collections.abc import Callable, Collection, Iterator, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from concurrent.futures.process import BrokenProcessPool
from dataclasses import dataclass
from multiprocessing.connection import wait as wait_for_processes
from typing import Any, TypeVar

from astrasim_py.core import compiling
from astrasim_py.core.compiling import Once

T = TypeVar("T")
R = TypeVar("R")


@dataclass(frozen=True, slots=True)
class Killed:
    """In place of a result: the process that worked on the task died."""

    reason: str = "its process was killed (out of memory?)"


def cores() -> int:
    """Cores that this process may use."""
    try:
        return len(os.sched_getaffinity(0))
    except AttributeError:  # not on every system
        return os.cpu_count() or 1


def _announce(line: str) -> None:
    sys.stderr.write(f"astrasim-py: {line}\n")


def _begin_worker(flag: Any) -> None:
    """Leave Ctrl-C to the parent, end with it, and announce compiling if the parent does and nobody has (`flag`)."""
    compiling.announce = None if flag is None else compiling.Once(_announce, flag)
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    signal.signal(signal.SIGTERM, signal.SIG_DFL)
    parent = multiprocessing.parent_process()
    if parent is not None:
        threading.Thread(target=_end_with, args=(parent.sentinel,), daemon=True).start()


def _end_with(sentinel: int) -> None:
    """End this process when another one ends."""
    wait_for_processes([sentinel])
    os._exit(1)


@contextlib.contextmanager
def _interrupt_after() -> Iterator[None]:
    """Put off a Ctrl-C, which other threads of a library may catch, until a worker has all that it is started with."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    came: list[int] = []
    before = signal.signal(signal.SIGINT, lambda *_: came.append(1))
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
    if came:
        raise KeyboardInterrupt


class Pool:
    """A pool and the processes it started."""

    def __init__(self, workers: int) -> None:
        self.others = {p.pid for p in multiprocessing.active_children()}
        context = multiprocessing.get_context("spawn")
        announce = compiling.announce and Once.of(compiling.announce)
        if announce and not hasattr(announce.said, "get_lock"):
            announce.said = context.Value("b", announce.said.value)
        self.executor = ProcessPoolExecutor(
            max_workers=workers,
            mp_context=context,
            initializer=_begin_worker,
            initargs=(announce and announce.said,),
        )

    def submit(self, function: Callable[[T], R], task: T) -> Future[R]:
        """Hand a task to a worker; workers that are started for it never see a Ctrl-C."""
        if not hasattr(signal, "pthread_sigmask"):
            return self.executor.submit(function, task)
        # They inherit the mask; before `_begin_worker` has run, a Ctrl-C would make them print tracebacks.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGINT})
        try:
            with _interrupt_after():
                return self.executor.submit(function, task)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)

    def kill(self) -> None:
        """End the workers at once and wait until they are gone."""
        workers = [p for p in multiprocessing.active_children() if p.pid not in self.others]
        for process in workers:
            process.kill()
        self.executor.shutdown(wait=True, cancel_futures=True)
        for process in workers:
            process.join()


def run_tasks(function: Callable[[T], R], tasks: Sequence[T], workers: int) -> Iterator[tuple[int, R | Killed]]:
    """Call ``function(task)`` for every task in worker processes. `function`: importable, and it lets no exception out.
    `tasks`: picklable. Yields number of the task and its result, in the order in which they end; `Killed` where the
    worker died twice. Closing the generator kills the workers.
    """
    waiting = deque(range(len(tasks)))
    suspects: deque[int] = deque()
    running: dict[Future[R], int] = {}

    def results(futures: Collection[Future[R]]) -> Iterator[tuple[int, R | Killed]]:
        for future in sorted(futures, key=running.__getitem__):
            number = running.pop(future)
            if isinstance(future.exception(), BrokenProcessPool):
                suspects.append(number)
            else:
                yield number, future.result()

    pool = Pool(workers)
    try:
        while waiting or running or suspects:
            if suspects and not running:
                # A broken pool does not say which task killed its worker: try those one by one, each alone.
                yield suspects[0], _alone(function, tasks[suspects[0]])
                suspects.popleft()
                continue
            broken = False
            while waiting and len(running) < workers and not broken:
                try:
                    running[pool.submit(function, tasks[waiting[0]])] = waiting[0]
                    waiting.popleft()
                except BrokenProcessPool:
                    broken = True
            if running and not broken:
                yield from results(wait(running, return_when=FIRST_COMPLETED).done)
            if broken or suspects:
                wait(running)
                yield from results(list(running))
                pool.kill()
                pool = Pool(workers)
    finally:
        pool.kill()


def _alone(function: Callable[[T], R], task: T) -> R | Killed:
    pool = Pool(1)
    try:
        future = pool.submit(function, task)
        return Killed() if isinstance(future.exception(), BrokenProcessPool) else future.result()
    finally:
        pool.kill()
