"""Explored configurations as tables: Megatron's columns first, then rates, step, memory, exposed communication."""

from collections.abc import Mapping, Sequence
from typing import Any

from astrasim_py.report.tables import text_table
from astrasim_py.report.training import PARTS, room_text
from astrasim_py.results.csv_io import csv_rows
from astrasim_py.training.schedules import SPLIT_BACKWARD

#: Heading → key of a row.
_LAYOUT = {
    "GBS": "gbs",
    "MBS": "mbs",
    "SeqLen": "seq",
    "TP": "tp",
    "PP": "pp",
    "CP": "cp",
    "VP": "vp",
    "EP": "ep",
}
_MORE = ("dp", "etp", "zero", "sp", "recompute", "schedule", "microbatches")
_EXPOSED = ("tp", "cp", "ep", "pp", "dp", "reduction")


def table_row(row: Mapping[str, Any], flops: str) -> dict[str, Any]:
    """A row with one number or word under each heading."""
    simulated = ("simulated_s", "simulated_off_s", "simulated_exposed_s", "gap", "status")
    parts = row["parts_s"]
    return {
        **{heading: row[key] for heading, key in _LAYOUT.items()},
        "tokens_per_s_per_gpu": row["tokens_per_s_per_gpu"],
        f"tflops_per_gpu_{flops}": row["tflops_per_gpu"][flops],
        "step_s": row["step_s"],
        **{f"memory_{kind}_bytes": nbytes for kind, nbytes in row["memory_bytes"].items()},
        "memory_bytes": row["memory_total_bytes"],
        **{f"exposed_{kind}_s": parts[kind] for kind in _EXPOSED},
        **{f"{kind}_s": seconds for kind, seconds in parts.items() if kind not in (*_EXPOSED, "memory")},
        "expanded_memory_s": parts["memory"],
        **{key: row.get(key) for key in simulated},
        "shares_links": row["shares_links"],
        **{heading: row[heading] for heading in _MORE},
        "configuration": row["configuration"],
    }


def table_csv(rows: Sequence[Mapping[str, Any]], flops: str) -> bytes:
    """The table as CSV."""
    found = [table_row(row, flops) for row in rows]
    return csv_rows(tuple(found[0]), found)


def table_text(rows: Sequence[Mapping[str, Any]], flops: str) -> str:
    """The table for a person: what differs little is left out."""
    simulated = any(row.get("gap") is not None for row in rows)
    schedules = len({row["schedule"] for row in rows}) > 1
    headings = (
        *_LAYOUT,
        "ZeRO",
        "recompute",
        *(("schedule",) if schedules else ()),
        "tokens/s/GPU",
        f"TFLOP/s/GPU ({flops})",
        "step",
        "memory",
    )
    headings += ("exposed", "bubble", *(("simulated", "gap") if simulated else ()))
    cells = []
    for row in rows:
        exposed = sum(row["parts_s"][kind] for kind in _EXPOSED)
        line = [str(row[key]) for key in (*_LAYOUT.values(), "zero", "recompute", *(("schedule",) * schedules))]
        line += [f"{row['tokens_per_s_per_gpu']:.1f}", f"{row['tflops_per_gpu'][flops]:.1f}", f"{row['step_s']:.4g} s"]
        line += [
            f"{row['memory_total_bytes'] / 1e9:.1f} GB{', ' * bool(room_text(row))}{room_text(row)}",
            _share(exposed, row),
            _share(row["parts_s"]["bubble"], row),
        ]
        if simulated:
            done = row.get("gap") is not None
            line += (
                [f"{row['simulated_s']:.4g} s", f"{100 * row['gap']:+.2f} %{' ~' * row['shares_links']}"]
                if done
                else [row.get("status", ""), ""]
            )
        cells.append(line)
    return text_table(headings, cells, [heading not in ("recompute", "schedule") for heading in headings])


def refused_text(refused: Mapping[str, int], total: int) -> str:
    """Why configurations are not in the table."""
    kept = total - sum(refused.values())
    rows = [(name, f"{count:,}") for name, count in refused.items()]
    return text_table(
        ("configurations", "count"), [("all", f"{total:,}"), *rows, ("possible", f"{kept:,}")], (False, True)
    )


def notes_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the closed form knows of the rows beyond their columns, a line each."""
    notes = []
    split = next((row for row in rows if row["schedule"] in SPLIT_BACKWARD and row["parts_s"]["reduction"] > 0), None)
    if split is not None:
        share, where = _share(split["parts_s"]["reduction"], split), split["configuration"]
        notes.append(
            f"{', '.join(SPLIT_BACKWARD)}: weight gradients come last and expose their reduction: {share} of {where}"
        )
    if any(row["schedule"] == "zbv" for row in rows):
        notes.append("zbv: its bubble is that of equal forward, input and weight passes; with others it loses more")
    done = [row for row in rows if row.get("gap") is not None]
    shared, others = sum(row["shares_links"] for row in done), [row["gap"] for row in done if not row["shares_links"]]
    if shared:
        rest = f"; without them {_sizes(others)}" if others else ""
        notes.append(
            f"~ {shared}: weights and gradients go over links of other collectives, where ranks drift apart "
            f"and no closed form is sure{rest}"
        )
    return "\n".join(notes)


def fit_text(row: Mapping[str, Any]) -> str:
    """What counts as a fit: the memory of an NPU less its reserve."""
    capacity, reserve = row["capacity_bytes"], row["reserve_bytes"]
    if not reserve:
        return f"memory: what needs up to {capacity / 1e9:.1f} GB counts as a fit; no reserve stays free"
    return (
        f"memory: what needs up to {(capacity - reserve) / 1e9:.1f} GB counts as a fit: of {capacity / 1e9:.1f} GB the "
        f"reserve of {reserve / 1e9:.1f} GB stays free for the CUDA context, NCCL's buffers and fragments"
    )


def best_text(rows: Sequence[Mapping[str, Any]], best: int) -> str:
    """The best configuration; where simulation and closed form differ, both. `best`: its place in the rows."""
    said, done = f"best: {rows[best]['configuration']}", [row for row in rows if row.get("gap") is not None]
    if done:
        mine, off = rows[best]["simulated_s"], rows[best]["simulated_off_s"] or 0
        others = [row for place, row in enumerate(rows) if place != best and row.get("gap") is not None]
        near = sum(abs(row["simulated_s"] - mine) < (row["simulated_off_s"] or 0) + off for row in others)
        unsure = f"; folding cannot tell it from {near} other{'s' * (near > 1)}" if near else ""
        said += f" (in simulation, of {len(done)} simulated{unsure})"
    if best:
        said += f"\nbest by the closed form: {rows[0]['configuration']}"
    return said


def _sizes(gaps: Sequence[float]) -> str:
    sizes = sorted(abs(gap) for gap in gaps)
    middle = (sizes[(len(sizes) - 1) // 2] + sizes[len(sizes) // 2]) / 2
    return f"gap {100 * middle:.2f} % median, {100 * sizes[-1]:.2f} % worst"


def order_text(rows: Sequence[Mapping[str, Any]], gaps: Sequence[float], wrong: int, pairs: int, fastest: int) -> str:
    """How well closed forms order what is simulated."""
    said = f"closed form against simulation of {len(gaps)}: {_sizes(gaps)}; "
    if not wrong:
        return said + "ordered as in simulation"
    said += f"{wrong} of {pairs} pairs are ordered wrongly"
    if not fastest:
        return f"{said}, the first is the fastest"
    first, best = rows[0], rows[fastest]
    if first.get("simulated_s") is None:
        return f"{said}, the fastest is number {fastest + 1}: {best['configuration']}"
    share = 100 * (first["simulated_s"] / best["simulated_s"] - 1)
    return f"{said}, the fastest is number {fastest + 1}: {best['configuration']}, {share:.2f} % faster than the first"


def what_if_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Changes of the machine, as `astrasim_py.exploration.what_if.what_if` gives them."""
    headings = ("what if", "same configuration", "best step", "speed-up", "best configuration", "bottleneck")
    cells = [
        (
            row["change"],
            f"{row['same_step_s']:.4g} s",
            f"{row['step_s']:.4g} s",
            f"{row['speedup']:.3f}",
            row["configuration"],
            row["bottleneck"],
        )
        for row in rows
    ]
    return text_table(headings, cells, (False, True, True, True, False, False))


def difference(one: Mapping[str, Any], other: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Seconds by which each part of a step differs, in order of the parts; they add up to the difference of steps."""
    found = [(name, other["parts_s"][name] - one["parts_s"][name]) for name in one["parts_s"]]
    return [(name, seconds) for name, seconds in found if seconds]


def difference_text(one: Mapping[str, Any], other: Mapping[str, Any]) -> str:
    """From the step of one configuration to that of another, part by part."""
    level = one["step_s"]
    rows = [(one["configuration"], "", f"{level:.4g} s", "")]
    for name, seconds in difference(one, other):
        level += seconds
        rows.append(
            (PARTS.get(name, name), f"{seconds:+.4g} s", f"{level:.4g} s", f"{100 * seconds / one['step_s']:+.1f} %")
        )
    rows.append((other["configuration"], f"{other['step_s'] - one['step_s']:+.4g} s", f"{other['step_s']:.4g} s", ""))
    steps = text_table(("part of a step", "change", "step", "of the first"), rows, (False, True, True, True))
    changes = []
    for kind, nbytes in one["memory_bytes"].items():
        then = other["memory_bytes"][kind]
        if then != nbytes:
            changes.append((kind, f"{nbytes / 1e9:.2f} GB", f"{then / 1e9:.2f} GB", f"{(then - nbytes) / 1e9:+.2f} GB"))
    totals = [row["memory_total_bytes"] / 1e9 for row in (one, other)]
    changes.append(("all", f"{totals[0]:.2f} GB", f"{totals[1]:.2f} GB", f"{totals[1] - totals[0]:+.2f} GB"))
    return f"{steps}\n\n{text_table(('memory', 'first', 'second', 'change'), changes, (False, True, True, True))}"


def why_not_text(found: Mapping[str, Any]) -> str:
    """What is against a configuration, or its place among those explored."""
    text = found["configuration"]
    counted = ", ".join(f"{name} {count:,}" for name, count in found["refused"].items())
    if found["possible"]:
        best = found["best"]
        some = f"{found['possible']:,} of {found['matching']:,} configurations with {text} are possible" + (
            f" ({counted})" if counted else ""
        )
        said = f"{some}; the best takes {best['step_s']:.4g} s and {best['memory_total_bytes'] / 1e9:.1f} GB"
        return f"{said}, number {found['place']:,} of the {found['of']:,} explored: {best['configuration']}"
    more = f" (all {found['matching']:,} that match: {counted})" if found["matching"] > 1 else ""
    return f"{text}: {found['problem']}; {found['remedy']}{more}"


def _share(seconds: float, row: Mapping[str, Any]) -> str:
    return f"{100 * seconds / row['step_s']:.1f} %"
