"""What an all_gather of nccl-tests says of a machine: its rate among the GPUs of a node, and over several nodes."""

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import mean

from astrasim_py.collectives.collective import busbw_factor
from astrasim_py.core.errors import UsageError
from astrasim_py.core.units import PS_PER_S, format_size
from astrasim_py.measured.rows import MeasuredRow, read_rows

#: A call that shows the rate.
CALL = "all_gather_perf -b 8M -e 1G -f 2 -g {gpus}"
#: Least buffer whose rate is not that of latencies: a sound H100 reaches 235 GB/s at 32 MiB, 300 at 128 MiB.
LEAST_BYTES = 64 * 10**6


@dataclass(frozen=True, kw_only=True)
class NodeTest:
    """Bus bandwidth of an all_gather at the largest size measured, GB/s.

    `node_gb_s`: among the GPUs of a node; `fabric_gb_s`: over `nodes` nodes, None where nothing was measured over
    as many. `others`: other numbers of nodes that were measured, as text. `bytes`: size in the node. `platform`: as the
    output names the GPU; `preset`: of the platform, None where there is none.
    """

    node_gb_s: float
    bytes: int
    platform: str
    preset: str | None
    fabric_gb_s: float | None
    nodes: int
    others: str


def read_node_test(paths: Sequence[str], gpus: int, nodes: int) -> NodeTest:
    """The test of a machine with `gpus` NPUs a node, and over `nodes` of them where that was measured.

    `paths`: whatever `measured.rows.read_rows` reads. Raises UsageError: one cannot be read, or has no all_gather of
    large buffers on all NPUs of a node.
    """
    place, call = ", ".join(paths), CALL.format(gpus=gpus)
    measured = read_rows(paths)
    gathers = [row for row in measured if row.collective == "all_gather" and not row.given]
    if not gathers:
        kinds = ", ".join(sorted({row.collective for row in measured})) or "nothing"
        raise UsageError(place, f"holds no all_gather, only {kinds}", f"run {call} on a node")
    inside = [row for row in gathers if row.nodes == 1]
    if not inside:
        counts = ", ".join(sorted({f"{row.nodes}" for row in gathers}))
        raise UsageError(
            place, f"holds no all_gather inside a node, only over {counts} nodes", f"run {call} on a node, too"
        )
    if not any(row.ranks == gpus for row in inside):
        counts = ", ".join(map(str, sorted({row.ranks for row in inside})))
        raise UsageError(place, f"holds an all_gather of {counts} GPUs, and a node has {gpus}", f"run {call} on a node")
    largest, rate = _largest([row for row in inside if row.ranks == gpus])
    if largest.bytes < LEAST_BYTES:
        problem = f"its largest all_gather has {format_size(largest.bytes)}, whose time is mostly latency"
        raise UsageError(place, problem, f"run {call} on a node")
    between = [row for row in gathers if row.nodes > 1 and row.ranks == gpus * row.nodes]
    over = [row for row in between if row.nodes == nodes]
    return NodeTest(
        node_gb_s=rate,
        bytes=largest.bytes,
        platform=largest.platform,
        preset=largest.preset,
        fabric_gb_s=_largest(over)[1] if over else None,
        nodes=nodes,
        others=", ".join(map(str, sorted({row.nodes for row in between}))) if nodes > 1 else "",
    )


def _largest(rows: Sequence[MeasuredRow]) -> tuple[MeasuredRow, float]:
    """A row of the largest size, and the mean bus bandwidth of its repeats, GB/s; out of place where that is known."""
    size = max(row.bytes for row in rows)
    repeats = [row for row in rows if row.bytes == size]
    chosen = [row for row in repeats if row.in_place != "1"] or repeats
    factor = float(busbw_factor("all_gather", chosen[0].ranks) or 0)
    return chosen[0], mean(row.bytes * factor * PS_PER_S / row.time_ps / 1e9 for row in chosen)
