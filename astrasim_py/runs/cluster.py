"""Run points of a sweep on the workers of a Dask cluster.

Points travel to the workers and short results travel back; records do not: a worker writes its point into the folder of
results itself, whole or not at all. So the scenario and the folder of results lie on a file system that the workers
share with the client, under the same paths; each point checks that before it is computed. A point whose worker is lost
is given to another one. What was not reached, for want of workers, the next run computes.
"""

import contextlib
import logging
import os
import re
import threading
import time
import warnings
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from astrasim_py.core.errors import EXIT_OUTPUT, EXIT_TRACE, EXIT_USAGE, CheckFailed, OutputError, UsageError
from astrasim_py.core.extras import optional_module
from astrasim_py.preparation.inputs import input_digests
from astrasim_py.results import store
from astrasim_py.runs.pool import Killed
from astrasim_py.runs.task import Result, Task, failed, run_task_apart

#: Seconds within which the scheduler must answer.
CONNECT_S = 10.0
#: Seconds without any worker after which a run gives up.
PATIENCE_S = 30.0
#: Points handed out per worker: the next one is there when the first ends.
_AHEAD = 2
_POLL_S = 1.0
_ADDRESS = re.compile(r"(tcp|tls|ws|wss|ucx|ucxx)://[^\s/:]+(:(\d{1,5}))?")

#: Held by the point that a worker process computes: threads would share one core and each other's CPU time.
_one_at_a_time = threading.Lock()


def check_address(address: str) -> None:
    """Refuse what is no address of a scheduler, and a cluster where Dask is not installed. Raises UsageError."""
    match = _ADDRESS.fullmatch(address)
    if match is None or int(match[3] or 0) >= 2**16:
        raise UsageError("--cluster", f'"{address}" is no address of a scheduler', "write e.g. tcp://localhost:8786")
    optional_module("distributed", "cluster", "--cluster")


def run_on_cluster(tasks: Sequence[Task], address: str, folder: Path) -> Iterator[tuple[int, Result | Killed]]:
    """Run every task on some worker; yields its number and its result, in the order in which they end. Closing the
    generator takes back what is not begun; points under way end on their workers and are kept. Raises UsageError: the
    scheduler cannot be reached. Raises CheckFailed: the scheduler, or every worker, is lost.
    """
    with _client(address) as client, store.scratch(Path(os.path.abspath(folder))) as probe:
        if probe is None:
            raise OutputError(str(folder), "cannot be written", "name a folder that you may write with --out")
        sent = []
        for task in tasks:  # workers have other working folders
            point = replace(task.point, folder=os.path.abspath(task.point.folder))
            sent.append(replace(task, point=point, folder=Path(os.path.abspath(task.folder))))
        yield from _results(client, address, sent, str(probe))


@contextlib.contextmanager
def _client(address: str) -> Iterator[Any]:
    check_address(address)
    from distributed import Client

    class Quiet(Client):
        """A client that, when it never found its scheduler, does not wait for it again to say good-bye."""

        def __del__(self) -> None:
            """Nothing."""

    answers: list[Any] = []

    def connect() -> None:
        try:
            with warnings.catch_warnings():
                warnings.simplefilter("ignore")  # on versions: results do not depend on them
                answers.append(Quiet(address, timeout=CONNECT_S, set_as_default=False, name="astrasim_py"))
        except Exception as error:  # whatever answers there need not be a scheduler
            answers.append(error)

    # Our own messages report the state of the cluster.
    logger = logging.getLogger("distributed")
    before = logger.level
    logger.setLevel(logging.CRITICAL + 1)
    try:
        # Its own timeout does not hold against a peer that accepts the connection and sends nothing.
        thread = threading.Thread(target=connect, daemon=True)
        thread.start()
        thread.join(CONNECT_S + 2)
        client = answers[0] if answers else TimeoutError(f"no answer within {CONNECT_S:.0f} s")
        if isinstance(client, Exception):
            expected = isinstance(client, OSError | TimeoutError)
            reason = " ".join(str(client).split())[:200] if expected else "what answers there is none"
            remedy = "start one (dask scheduler) or write its address"
            raise UsageError("--cluster", f"finds no scheduler at {address}: {reason}", remedy)
        try:
            yield client
        finally:
            with contextlib.suppress(Exception):  # it may be gone
                client.close(timeout=2)
    finally:
        logger.setLevel(before)


def work(task: Task, probe: str, edition: str) -> Result:
    with _one_at_a_time:
        return _refusal(task, probe, edition) or run_task_apart(task)


def _refusal(task: Task, probe: str, edition: str) -> Result | None:
    """Why this worker cannot compute a point as the client would; None if it can."""
    import socket

    host = f"worker on {socket.gethostname()}"
    if edition != store.result_edition():
        line = f"{host}: has another version or state of astrasim_py than the client; install the same"
        return failed(task.point, EXIT_USAGE, line)
    if not os.path.exists(probe):
        remedy = "name one with --out that the client and all workers share"
        return failed(
            task.point, EXIT_OUTPUT, f"{host}: does not see the folder of results {task.folder.parent}; {remedy}"
        )
    digests = input_digests(task.point)
    differ = [name for name, content in task.inputs.items() if digests.get(name) != content]
    if differ:
        line = f"{host}: does not see the same {differ[0]} in {task.point.folder}; put the scenario where all share it"
        return failed(task.point, EXIT_TRACE, line)
    return None


def _results(client: Any, address: str, tasks: Sequence[Task], probe: str) -> Iterator[tuple[int, Result | Killed]]:
    from distributed import wait

    lost = CheckFailed("--cluster", f"the scheduler at {address} is lost", "run it again to go on")
    waiting: deque[int] = deque(range(len(tasks)))
    running: dict[Any, int] = {}
    last_seen_s = time.monotonic()  # when there was a worker last
    try:
        while waiting or running:
            try:
                workers = len(client.nthreads())
            except (OSError, RuntimeError, TimeoutError):
                raise lost from None
            last_seen_s = time.monotonic() if workers else last_seen_s
            if time.monotonic() - last_seen_s > PATIENCE_S:
                problem = f"the scheduler at {address} has had no worker for {PATIENCE_S:.0f} s"
                remedy = f"start some (dask worker {address} --nthreads 1) and run it again to go on"
                raise CheckFailed("--cluster", problem, remedy)
            while waiting and len(running) < _AHEAD * workers:
                number = waiting.popleft()
                # Not pure: a point that was computed before and removed since is computed again.
                future = client.submit(work, tasks[number], probe, store.result_edition(), pure=False)
                running[future] = number
            if not running:
                time.sleep(_POLL_S / 4)
                continue
            with contextlib.suppress(TimeoutError), client.as_current():
                wait(list(running), timeout=_POLL_S, return_when="FIRST_COMPLETED")
            for future in [future for future in running if future.done()]:
                if future.status == "cancelled":
                    raise lost
                yield running.pop(future), _result(future)
    finally:
        with contextlib.suppress(Exception):
            client.cancel(list(running))


def _result(future: Any) -> Result | Killed:
    from distributed.scheduler import KilledWorker

    error = future.exception()
    if error is None:
        return future.result()
    if isinstance(error, KilledWorker):
        return Killed("every worker that took it was lost (out of memory?)")
    text = " ".join(f"{type(error).__name__}: {error}".split())
    remedy = "install astrasim_py on the workers, as on the client"
    raise CheckFailed("--cluster", f"a worker cannot run it: {text}"[:400], remedy)
