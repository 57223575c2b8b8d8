"""What is stored of a point."""

from collections.abc import Mapping, Sequence

#: Keys of a row, in this order, in every format.
ROW_KEYS = (
    "scenario", "point", "sweep", "topology", "algorithm", "size_bytes", "npus", "engine", "network_model",
    "time_ns", "bound_ns", "efficiency", "algbw_GBps", "busbw_GBps", "exposed_comm_ns", "messages", "message_hops",
    "busiest_link", "busiest_link_GBps", "cpu_s", "status",
)  # fmt: skip

JOB_KEYS = (
    "point", "job", "ranks", "arrival_ns", "finish_ns", "time_ns", "iterations", "iteration_mean_ns",
    "iteration_p50_ns", "iteration_p99_ns", "iterations_per_s", "alone_ns", "slowdown",
)  # fmt: skip

COLLECTIVE_KEYS = (
    "point", "instance", "job", "group", "type", "ranks", "size", "algorithm", "start_ns", "end_ns", "time_ns",
    "bound_ns", "efficiency", "algbw_GBps", "busbw_GBps",
)  # fmt: skip


def with_swept_columns(rows: Sequence[Mapping]) -> tuple[list[str], list[dict]]:
    """The columns of ``summary.csv``, with one for each swept key behind ``point``, and the rows with these keys."""
    swept = list(dict.fromkeys(key for row in rows for key in row["sweep"]))
    keys = [key for key in ROW_KEYS if key not in ("sweep", "cpu_s")]
    place = keys.index("point") + 1
    names = {key: key if key not in keys else f"sweep.{key}" for key in swept}
    made = [{**row, **{names[key]: value for key, value in row["sweep"].items()}} for row in rows]
    return [*keys[:place], *names.values(), *keys[place:]], made
