"""Running the kernel on its input: the state, pools that grow, and when to stop."""

import numpy as np

from astrasim_py.core.errors import InternalError
from astrasim_py.engine.compiled import records
from astrasim_py.engine.compiled.build import KernelInput

#: Bytes of a cache line.
LINE = 64
#: Variables that say how a call of the kernel is to go, not how far the run is.
_OF_A_CALL = {"steps_left", "budget", "spare", "arena_limit"}


class State:
    """The mutable state of the kernel.

    `scalars`: the record `records.STATE` or `records.WHOLE`. `tables`: the tables of `records.ADDRESSES`. In `progress`
    instances follow the calls; `node_rows`, `message_rows` and `hop_rows` hold the recorded rows, or one row if nothing
    is recorded.

    Tables grow (`records.POOLS`): one begins with `rows` rows and what the begin of the run takes, and gets at least
    what the kernel asks for (`astrasim_py.engine.compiled.capacity`), which wants room for `spare` steps. The kernel
    makes at most `steps` steps between two checks for Ctrl-C: some tenths of a second.
    """

    rows, spare, steps = 1024, 16, 2**20

    def __init__(self, given: KernelInput, *, nodes: int = 0, messages: bool = False, counting: bool = True) -> None:
        self.input = given
        self._held = np.zeros(1, dtype=records.WHOLE if given.whole else records.STATE)
        self.scalars = s = self._held[0]
        for name, value in given.constants.items():
            s[name] = value
        for name in ("current", "last_time", "awake", "rank", "sender", "carried"):
            s[name] = -1
        s["record_links"], s["record_nodes"], s["record_messages"] = counting, nodes > 0, messages
        s["status"], s["most_ready"], s["spare"] = records.UNBORN, 4, self.spare
        ranks = given.tables["ranks"]
        n = int(s["rank_count"])
        # Word 0 is unused; then the channels of workloads, then the workloads' blocks and queues.
        channels = 2 * max(int(s["shared_channels"]), 0)
        s["channels"], s["arena_top"] = 8, 8 + channels
        names = ("words", "root_count", "nodes")
        template = {name: given.tables["templates"][name][ranks["template"][:n]] for name in names}
        own = int(template["words"].sum()) * 2 + n * 16 + 4 * int(template["root_count"].sum())
        own += int(ranks["queues"].sum()) * int(records.QUEUE_WORDS) * 2
        gated = np.flatnonzero(ranks["gates"][:n] >= 0)
        own += int(2 * given.tables["ints"][(ranks["gates"][:n] + template["nodes"])[gated]].sum()) + 16 * len(gated)
        arena = _lines(_power(8 + channels + own + 4 * self.rows))
        arena[: 8 + channels] = 0
        events, rows = _power(2 * n + self.rows), 4 * self.rows if messages else 1
        fluid = s["model"] == records.FLUID
        routes = len(given.tables["route_targets"])
        flows = routes if fluid else 1
        s["routes_now"] = s["route_ptr"]
        kinds = {"ends": records.ENTRY, "taken": records.ENTRY}
        pools = np.zeros(len(records.POOLS), dtype=records.POOL)
        pools["free"] = -1
        self.tables = {
            **given.tables,
            "slots": _lines(4 * n, records.SLOT, 0),
            "servers": np.zeros(int(ranks["server"].max()) + 1, dtype=np.int64),
            "progress": _lines(int(s["call_count"]) + len(given.tables["instances"]), records.PROGRESS, 0),
            "arena": arena,
            "events": _lines(events, records.EVENT),
            "buckets": _lines(events, records.BUCKET),
            "times": np.empty(events, dtype=records.ENTRY),
            "hash": np.full(events, -1, dtype=np.int32),
            "matches": _lines(self.rows, records.MATCH),
            "waits": _lines(self.rows, records.WAIT),
            "blocks": _lines(n + self.rows, records.BLOCK),
            "pools": pools,
            "dirty": np.zeros(n // 64 + 1, dtype=np.int64),
            "wave": _lines(self.rows, records.ENTRY),
            "due": np.zeros(records.MOST_DUE, dtype=records.DUE),
            "free_words": np.zeros(records.SIZE_CLASSES, dtype=np.int64),
            "node_rows": _lines(max(nodes, 1), records.NODE_ROW),
            "message_rows": _lines(rows, records.MESSAGE_ROW),
            "hop_rows": _lines(rows, records.HOP_ROW),
            "pairs_sent": np.zeros(routes if s["qps"] > 1 else 1, dtype=np.int64),
            "crossed": np.zeros(len(given.tables["shared"]), dtype=np.int64),
            "filling": np.empty(len(given.tables["shared"]) + 1, dtype=records.ENTRY),
            "uses": _lines(len(given.tables["path"]) if fluid else 1, records.USE, 0),
            "reroutes": _lines(flows if s["change_count"] else 1, records.REROUTE, 0),
            **{name: _lines(flows, kind, 0) for name, kind in kinds.items()},
        }
        if s["change_count"]:
            longs, links = given.tables["longs"], int(s["link_count"])
            _, s["routes_now"], capacity, latency = longs[s["changes"] :][: records.CHANGE_WORDS]
            self.tables["shared"]["capacity"][:links] = longs[capacity:][:links]
            self.tables["links"]["latency"][:links] = longs[latency:][:links]
            s["change_next"] = 1
        self.tables["progress"]["start"] = self.tables["progress"]["end"] = -1
        self.tables["node_rows"].view(np.int64)[:] = -1

    @property
    def status(self) -> int:
        """Status of the run, one of those in `records`."""
        return int(self.scalars["status"])

    def used(self, pool: str) -> np.ndarray:
        """Used rows of a pool."""
        return self.tables[pool][: self.top(pool)]

    def grow(self) -> None:
        """Enlarge the tables that the kernel asks more rows of, and update addresses."""
        s, tables, pools = self.scalars, self.tables, self.tables["pools"]
        for number, name in enumerate(records.POOLS):
            rows, asked = len(tables[name]), int(pools["asked"][number])
            if asked > rows:
                self._grow(name, max(asked, rows * 3 // 2 if name == "arena" else 2 * rows))
        if len(tables["buckets"]) > len(tables["times"]):
            self._grow("times", len(tables["buckets"]))
            self._hash_again(_power(len(tables["buckets"])))
        pools["room"] = [len(tables[name]) for name in records.POOLS]
        s["hash_mask"] = len(tables["hash"]) - 1
        for name in records.ADDRESSES:
            s[f"at_{name}"] = tables[name].ctypes.data

    def top(self, name: str) -> int:
        """Rows used so far of a table that grows."""
        others = {"arena": "arena_top", "message_rows": "message_row_count", "hop_rows": "hop_row_count"}
        if name == "wave":
            return int(self.scalars["wave_size"])
        if name in others:
            return int(self.scalars[others[name]])
        return int(self.tables["pools"]["top"][records.POOLS.index(name)])

    def _grow(self, name: str, rows: int) -> None:
        """Enlarge a table; the new rows are uninitialised."""
        old = self.tables[name]
        self.tables[name] = _lines(rows, old.dtype)
        self.tables[name][: len(old)] = old

    def _hash_again(self, rows: int) -> None:
        """Rebuild the hash table with `rows` rows from the pending buckets."""
        self.tables["hash"] = hashed = np.full(rows, -1, dtype=np.int32)
        pending = self.tables["times"][: self.scalars["time_count"]]
        with np.errstate(over="ignore"):
            slots = ((pending["key"] * np.int64(records.SPREAD)) >> 20) & (rows - 1)
        for slot, bucket in zip(slots.tolist(), pending["item"].tolist(), strict=True):
            self.tables["buckets"]["next"][bucket] = hashed[slot]
            hashed[slot] = bucket

    def run(self) -> None:
        """Run until `status` is no longer RUNNING.

        Raises InternalError: the kernel stands still, and this would never end; or it has written beyond a table.
        """
        from astrasim_py.engine.compiled.kernel import advance

        before, idle, s = None, 0, self.scalars
        while self.status in (records.UNBORN, records.RUNNING):
            self.grow()
            s["steps_left"] = self.steps
            advance(self._held)
            for name in records.POOLS:
                if self.top(name) > len(self.tables[name]):
                    raise InternalError(f"the compiled engine has written beyond its table of {name}")
            now = [s[name] for name in records.VARIABLES if name not in _OF_A_CALL]
            idle = idle + 1 if now == before else 0
            if idle == 2:
                where = f"at {s['now']} ps, after {s['issued']} events and {s['sent']} messages"
                raise InternalError(f"the compiled engine stands still {where}; --engine simpy does without it")
            before = now


def _lines(rows: int, dtype: np.dtype | type = np.int64, value: int | None = None) -> np.ndarray:
    """An array aligned to cache lines, uninitialised or 0.

    numpy's own arrays are not aligned: each row of 64 bytes would span two lines.
    """
    count = rows * np.dtype(dtype).itemsize
    # Untouched zeros take no memory.
    space = np.zeros(count + LINE, dtype=np.uint8) if value == 0 else np.empty(count + LINE, dtype=np.uint8)
    begin = -space.ctypes.data % LINE
    return space[begin : begin + count].view(dtype)


def _power(least: int) -> int:
    """The least power of two ≥ `least`."""
    return 1 << max(int(least) - 1, 1).bit_length()
