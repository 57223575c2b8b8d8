"""Small recordings written down in tests: one event a line, times in microseconds."""

import numpy as np

from astrasim_py.pytorch.recording import Category, Events, RecordedStep, Recording

_HOST = {"op": Category.OP, "annotation": Category.ANNOTATION, "call": Category.CALL}
_DEVICE = {"kernel": Category.KERNEL, "memcpy": Category.MEMCPY, "memset": Category.MEMSET, "sync": Category.SYNC}


def host(kind, name, start, end, correlation=-1, thread=0):
    """An operator, annotation or call of a thread."""
    return kind, name, start, end, correlation, thread, None


def device(kind, name, start, end, correlation=-1, stream=7, **args):
    """Work of a stream, or a recorded wait."""
    return kind, name, start, end, correlation, stream, args


def recording(*events, end=None, resolution_us=1, backlog=()):
    """A recording of one step of these events; `backlog`: correlations of work that was launched before it."""
    events = sorted(events, key=lambda event: (event[2], event[2] - event[3]))
    kinds = [_HOST.get(event[0], _DEVICE.get(event[0])) for event in events]
    names = list(dict.fromkeys(event[1] for event in events))
    of_host = np.array([event[6] is None for event in events])
    place = np.array([event[5] for event in events])
    calls = {event[4]: row for row, event in enumerate(events) if event[0] == "call" and event[4] >= 0}
    ns = np.array([[round(1000 * event[2]), round(1000 * event[3])] for event in events], dtype=np.int64)
    correlation = np.array([event[4] for event in events], dtype=np.int64)
    columns = Events(
        category=np.array(kinds, dtype=np.int8),
        name=np.array([names.index(event[1]) for event in events], dtype=np.int32),
        start=ns[:, 0],
        duration=ns[:, 1] - ns[:, 0],
        thread=np.where(of_host, place, -1).astype(np.int32),
        correlation=correlation,
        external_id=np.full(len(events), -1),
        record_id=np.full(len(events), -1),
        device=np.where(of_host, -1, 0).astype(np.int32),
        stream=np.where(of_host, -1, place).astype(np.int64),
        launch=np.array([-1 if event[6] is None else calls.get(event[4], -1) for event in events], dtype=np.int32),
        args={row: event[6] for row, event in enumerate(events) if event[0] == "sync"},
    )
    last = int(ns[of_host, 1].max()) if end is None else round(1000 * end)
    return Recording(
        source="written.json",
        rank=0,
        world_size=1,
        groups=(),
        base_ns=0,
        resolution_ns=1000 * resolution_us,
        step=RecordedStep("", 0, last),
        steps=(),
        names=tuple(names),
        threads=tuple((1, thread) for thread in range(int(place[of_host].max()) + 1)),
        events=columns,
        backlog=np.flatnonzero(np.isin(correlation, backlog) & ~of_host),
        counts={},
    )
