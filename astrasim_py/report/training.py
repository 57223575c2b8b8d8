"""Step time, memory and rates of a training as text."""

from collections.abc import Iterable, Mapping
from decimal import Decimal
from typing import Any

from astrasim_py.core.units import format_time
from astrasim_py.report.tables import text_table, time_text
from astrasim_py.results.model import Row
from astrasim_py.training.memory import doubt

#: Names of the parts of a step.
PARTS = {
    "forward": "forward",
    "backward": "backward",
    "host": "waiting for the host",
    "tp": "tensor parallel, exposed",
    "cp": "context parallel, exposed",
    "ep": "expert parallel, exposed",
    "pp": "pipeline, exposed",
    "dp": "data parallel, exposed",
    "reduction": "last reduction of gradients, exposed",
    "bubble": "bubble",
    "optimizer": "optimizer",
    "memory": "moving to expanded memory",
    "fixed": "fixed time of the software",
}


def explain_text(estimate: Mapping[str, Any]) -> str:
    """The closed form's terms, the memory by kind, and rates."""
    layout = "  ".join(f"{key} {estimate[key]}" for key in ("tp", "pp", "cp", "vp", "ep", "dp", "zero"))
    parts = [
        (PARTS[name], _time(seconds), f"{100 * seconds / estimate['step_s']:.1f} %")
        for name, seconds in estimate["parts_s"].items()
        if seconds
    ]
    parts.append(("step", _time(estimate["step_s"]), "100 %"))
    memory = [(name, f"{size / 1e9:.2f} GB") for name, size in estimate["memory_bytes"].items() if size]
    total = f"{estimate['memory_total_bytes'] / 1e9:.2f} GB of {estimate['capacity_bytes'] / 1e9:.4g} GB"
    memory.append(("all", ", ".join(filter(None, (total, room_text(estimate))))))
    rates = ", ".join(f"{value:.1f} ({name})" for name, value in estimate["tflops_per_gpu"].items())
    return "\n\n".join(
        (
            f"{estimate['ranks']} GPUs: {layout}, {estimate['microbatches']} microbatches, {estimate['schedule']}\n"
            f"{costs_text(estimate)}",
            text_table(("part of a step", "time", "share"), parts, (False, True, True)),
            text_table(("memory", "at the peak"), memory, (False, True)),
            f"{estimate['tokens_per_s_per_gpu']:.1f} tokens/s/GPU; TFLOP/s/GPU by convention: {rates}",
        )
    )


def costs_text(of: Mapping[str, Any]) -> str:
    """Software and state of the machine that times hold for, e.g. ``software pytorch, state sound (default)``."""
    state = f", state {of['state']} ({of['state_source']})" if of["state"] else ""
    return f"software {of['software']}{state}"


def trainings_lines(rows: Iterable[Row]) -> list[str]:
    """`costs_text` of the trainings of rows, each once, with their jobs where there are several."""
    trainings = (training for row in rows for training in row.trainings)
    return list(dict.fromkeys(f"{of.job}: " * bool(of.job) + costs_text(of) for of in trainings))


def _time(seconds: float) -> str:
    return format_time(round(seconds * 10**12))


def room_text(estimate: Mapping[str, Any]) -> str:
    """What is wrong with the memory that a training needs: it is too much, or may be."""
    total, capacity = estimate["memory_total_bytes"], estimate["capacity_bytes"]
    usable = capacity - estimate["reserve_bytes"]
    if total > usable:
        return f"too much: {usable / 2**30:.1f} GiB are usable"
    return doubt(total, usable)


def step_text(estimate: Mapping[str, Any], row: Row) -> str:
    """The closed form and the simulated step."""
    simulated = (row.time_ns or Decimal(0)) / 10**9
    gap = round(100 * (estimate["step_s"] / float(simulated) - 1), 1) + 0.0  # no negative zero
    form = "closed form, as above" if estimate["routing"] == "balanced" else "closed form, balanced routing"
    lines = [
        ("simulated", time_text(row.time_ns), f"{time_text(row.exposed_comm_ns or 0)} of communication are exposed"),
        (form, _time(estimate["step_s"]), f"{gap:+.1f} % beside the simulated step"),
    ]
    table = text_table(("a step", "time", ""), lines, (False, True, False))
    return f"{explain_text(estimate)}\n\n{table}"
