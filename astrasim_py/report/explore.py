"""Explored configurations as tables: Megatron's columns first, then rates, step, memory, exposed communication."""

from collections.abc import Mapping, Sequence
from typing import Any

from astrasim_py.report.tables import text_table
from astrasim_py.report.training import PARTS, room_text
from astrasim_py.results.csv_io import csv_rows
from astrasim_py.training.memory import DOUBTFUL
from astrasim_py.training.schedules import SPLIT_BACKWARD

#: Headings of the table, as tools of others write them → keys of a row.
LAYOUT = {
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
        **{heading: row[key] for heading, key in LAYOUT.items()},
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
    cells = [table_row(row, flops) for row in rows]
    return csv_rows(tuple(cells[0]), cells)


def table_text(rows: Sequence[Mapping[str, Any]], flops: str) -> str:
    """The table for a person: what differs little is left out."""
    simulated = any(row.get("gap") is not None for row in rows)
    schedules = len({row["schedule"] for row in rows}) > 1
    headings = (
        *LAYOUT,
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
        line = [str(row[key]) for key in (*LAYOUT.values(), "zero", "recompute", *(("schedule",) * schedules))]
        line += [f"{row['tokens_per_s_per_gpu']:.1f}", f"{row['tflops_per_gpu'][flops]:.1f}", f"{row['step_s']:.4g} s"]
        line += [
            f"{row['memory_total_bytes'] / 1e9:.1f} GB{_room(row)}",
            _share(exposed, row),
            _share(row["parts_s"]["bubble"], row),
        ]
        if simulated:
            simulated_row = row.get("gap") is not None
            line += (
                [f"{row['simulated_s']:.4g} s", f"{100 * row['gap']:+.2f} %{' ~' * row['shares_links']}"]
                if simulated_row
                else [row.get("status", ""), ""]
            )
        cells.append(line)
    return text_table(headings, cells, [heading not in ("recompute", "schedule") for heading in headings])


def refused_text(refused: Mapping[str, int], total: int) -> str:
    """Why configurations are not in the table."""
    possible = total - sum(refused.values())
    rows = [(name, f"{count:,}") for name, count in refused.items()]
    return text_table(
        ("configurations", "count"), [("all", f"{total:,}"), *rows, ("possible", f"{possible:,}")], (False, True)
    )


def notes_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """What the closed form knows of the rows beyond their columns, a line each."""
    notes = []
    split = next((row for row in rows if row["schedule"] in SPLIT_BACKWARD and row["parts_s"]["reduction"] > 0), None)
    if split is not None:
        share, name = _share(split["parts_s"]["reduction"], split), split["configuration"]
        notes.append(
            f"{', '.join(SPLIT_BACKWARD)}: weight gradients come last and expose their reduction: {share} of {name}"
        )
    if any(row["schedule"] == "zbv" for row in rows):
        notes.append("zbv: its bubble is that of equal forward, input and weight passes; with others it loses more")
    simulated = [row for row in rows if row.get("gap") is not None]
    shared = sum(row["shares_links"] for row in simulated)
    gaps = [row["gap"] for row in simulated if not row["shares_links"]]
    if shared:
        sizes = f"; without them {_sizes(gaps)}" if gaps else ""
        notes.append(
            f"~ {shared}: weights and gradients go over links of other collectives, where ranks drift apart "
            f"and no closed form is sure{sizes}"
        )
    return "\n".join(notes)


def _room(row: Mapping[str, Any]) -> str:
    text = room_text(row)
    return f", {text.split(': ')[-1] if text.endswith('out') else 'too much'}" if text else ""


def fit_text(row: Mapping[str, Any]) -> str:
    """What counts as a fit: the memory of an NPU less its reserve."""
    capacity, reserve = row["capacity_bytes"], row["reserve_bytes"]
    if not reserve:
        return f"memory: what needs up to {capacity / 1e9:.1f} GB counts as a fit; no reserve stays free"
    text = (
        f"memory: what needs up to {(capacity - reserve) / 1e9:.1f} GB counts as a fit: of {capacity / 1e9:.1f} GB the "
        f"reserve of {reserve / 1e9:.1f} GB stays free for the CUDA context, NCCL's buffers and fragments"
    )
    return f"{text}; above {DOUBTFUL * (capacity - reserve) / 1e9:.1f} GB it may run out"


def best_text(rows: Sequence[Mapping[str, Any]], best: int) -> str:
    """The best configuration; where simulation and closed form differ, both. `best`: its place in the rows."""
    text, simulated = f"best: {rows[best]['configuration']}", [row for row in rows if row.get("gap") is not None]
    if simulated:
        time, off = rows[best]["simulated_s"], rows[best]["simulated_off_s"] or 0
        rivals = [row for place, row in enumerate(rows) if place != best and row.get("gap") is not None]
        near = sum(abs(row["simulated_s"] - time) < (row["simulated_off_s"] or 0) + off for row in rivals)
        unsure = f"; folding cannot tell it from {near} other{'s' * (near > 1)}" if near else ""
        text += f" (in simulation, of {len(simulated)} simulated{unsure})"
    if best:
        text += f"\nbest by the closed form: {rows[0]['configuration']}"
    return text


def _sizes(gaps: Sequence[float]) -> str:
    sizes = sorted(abs(gap) for gap in gaps)
    middle = (sizes[(len(sizes) - 1) // 2] + sizes[len(sizes) // 2]) / 2
    return f"gap {100 * middle:.2f} % median, {100 * sizes[-1]:.2f} % worst"


def order_text(rows: Sequence[Mapping[str, Any]], gaps: Sequence[float], wrong: int, pairs: int, fastest: int) -> str:
    """How well closed forms order what is simulated."""
    text = f"closed form against simulation of {len(gaps)}: {_sizes(gaps)}; "
    if not wrong:
        return text + "ordered as in simulation"
    text += f"{wrong} of {pairs} pairs are ordered wrongly"
    if not fastest:
        return f"{text}, the first is the fastest"
    first, best = rows[0], rows[fastest]
    if first.get("simulated_s") is None:
        return f"{text}, the fastest is number {fastest + 1}: {best['configuration']}"
    share = 100 * (first["simulated_s"] / best["simulated_s"] - 1)
    return f"{text}, the fastest is number {fastest + 1}: {best['configuration']}, {share:.2f} % faster than the first"


def what_if_text(rows: Sequence[Mapping[str, Any]]) -> str:
    """Changes of the machine, as `astrasim_py.exploration.what_if.what_if` gives them."""
    headings = ("what if", "same configuration", "best step", "speed-up", "best configuration", "bottleneck")
    cells = [
        (
            row["change"],
            f"{row['same_step_s']:.4g} s",
            f"{row['step_s']:.4g} s",
            f"{row['speedup']:.3f}{' (slower)' if row['speedup'] < 0.9995 else ''}",
            row["configuration"],
            row["bottleneck"],
        )
        for row in rows
    ]
    return text_table(headings, cells, (False, True, True, True, False, False))


def difference(first: Mapping[str, Any], second: Mapping[str, Any]) -> list[tuple[str, float]]:
    """Seconds by which each part of a step differs, in order of the parts; they add up to the difference of steps."""
    changes = [(name, second["parts_s"][name] - first["parts_s"][name]) for name in first["parts_s"]]
    return [(name, seconds) for name, seconds in changes if seconds]


def difference_text(first: Mapping[str, Any], second: Mapping[str, Any]) -> str:
    """From the step of one configuration to that of another, part by part."""
    level = first["step_s"]
    rows = [(first["configuration"], "", f"{level:.4g} s", "")]
    for name, seconds in difference(first, second):
        level += seconds
        rows.append(
            (PARTS.get(name, name), f"{seconds:+.4g} s", f"{level:.4g} s", f"{100 * seconds / first['step_s']:+.1f} %")
        )
    rows.append(
        (second["configuration"], f"{second['step_s'] - first['step_s']:+.4g} s", f"{second['step_s']:.4g} s", "")
    )
    steps = text_table(("part of a step", "change", "step", "of the first"), rows, (False, True, True, True))
    changes = []
    for kind, nbytes in first["memory_bytes"].items():
        then = second["memory_bytes"][kind]
        if then != nbytes:
            changes.append((kind, f"{nbytes / 1e9:.2f} GB", f"{then / 1e9:.2f} GB", f"{(then - nbytes) / 1e9:+.2f} GB"))
    totals = [row["memory_total_bytes"] / 1e9 for row in (first, second)]
    changes.append(("all", f"{totals[0]:.2f} GB", f"{totals[1]:.2f} GB", f"{totals[1] - totals[0]:+.2f} GB"))
    return f"{steps}\n\n{text_table(('memory', 'first', 'second', 'change'), changes, (False, True, True, True))}"


def why_not_text(answer: Mapping[str, Any]) -> str:
    """What is against a configuration, or its place among those explored."""
    text = answer["configuration"]
    counted = ", ".join(f"{name} {count:,}" for name, count in answer["refused"].items())
    if answer["possible"]:
        best = answer["best"]
        counts = f"{answer['possible']:,} of {answer['matching']:,} configurations with {text} are possible" + (
            f" ({counted})" if counted else ""
        )
        sentence = f"{counts}; the best takes {best['step_s']:.4g} s and {best['memory_total_bytes'] / 1e9:.1f} GB"
        place, explored = answer["place"], f"the {answer['of']:,} explored"
        standing = f"number {place:,} of {explored}" if place <= answer["of"] else f"behind {explored}"
        return f"{sentence}, {standing}: {best['configuration']}"
    total = f" (all {answer['matching']:,} that match: {counted})" if answer["matching"] > 1 else ""
    return f"{text}: {answer['problem']}; {answer['remedy']}{total}"


def _share(seconds: float, row: Mapping[str, Any]) -> str:
    return f"{100 * seconds / row['step_s']:.1f} %"
