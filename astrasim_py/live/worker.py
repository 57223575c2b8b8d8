"""One worker process that runs the newest of the changes that a page asks for, and can be killed."""

import threading
import time
from concurrent.futures import Future, wait
from concurrent.futures.process import BrokenProcessPool
from typing import Any

from astrasim_py.live.live import Run, run_live
from astrasim_py.runs.pool import Pool

#: Seconds that a run may take, and after which a newer change kills it rather than wait for its end.
MOST_SECONDS = 20.0
GRACE = 2.0
_POLL = 0.05
_STOPPED = {"stopped": True}


class Worker:
    """Runs scenarios one at a time. A new process first runs `first`, which loads what later runs need."""

    def __init__(self, first: Run) -> None:
        self._first, self._newest, self._closed = first, 0, False
        self._lock, self._turn = threading.Lock(), threading.Lock()
        self._start()

    def _start(self) -> None:
        self._pool = Pool(1)
        try:
            self._ready: Future = self._pool.submit(run_live, self._first)
        except KeyboardInterrupt:
            self._pool.kill()
            raise

    def _restart(self) -> None:
        self._pool.kill()
        if not self._closed:
            self._start()

    def first(self) -> dict[str, Any]:
        """What the first run gave, without a limit of time: functions may have to be compiled."""
        try:
            return self._ready.result()
        except BrokenProcessPool:
            return {"error": "its process was killed (out of memory?)"}

    def run(self, run: Run) -> dict[str, Any]:
        """What `run_live` gives; ``stopped`` instead, where a newer call or `stop` came in between."""
        with self._lock:
            self._newest += 1
            number = self._newest
        while not self._turn.acquire(timeout=_POLL):
            if number != self._newest:
                return _STOPPED
        try:
            while not wait([self._ready], _POLL).done:
                if number != self._newest:
                    return _STOPPED
            return self._result(run, number)
        except BrokenProcessPool:
            self._restart()
            return {"error": "its process was killed (out of memory?); choose a smaller size, or another algorithm"}
        finally:
            self._turn.release()

    def _result(self, run: Run, number: int) -> dict[str, Any]:
        began = time.monotonic()
        future = self._pool.submit(run_live, run)
        while not wait([future], _POLL).done:
            took = time.monotonic() - began
            if took > MOST_SECONDS:
                self._restart()
                remedy = "choose a smaller size, or save it as YAML and run that"
                return {"error": f"stopped: it takes more than {MOST_SECONDS:.0f} s; {remedy}"}
            if number != self._newest and took > GRACE:
                self._restart()
                return _STOPPED
        return {**future.result(), "seconds": round(time.monotonic() - began, 3)}

    def stop(self) -> None:
        """Stop what runs, if it takes longer than `GRACE`, and what waits."""
        with self._lock:
            self._newest += 1

    def close(self) -> None:
        self._closed = True
        self._pool.kill()
