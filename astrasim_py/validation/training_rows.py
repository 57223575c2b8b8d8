"""Published training throughput against closed forms: rows of a CSV, each a run that somebody measured.

A row says model, machine and parallelism; what it does not say is in `RULES`, by its source: attention kernel, what
overlaps, how gradients are reduced. Figures are step times.
"""

import csv
import math
import os
import re
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cache
from pathlib import Path
from typing import Any

from astrasim_py.core.errors import ScenarioError, UsageError
from astrasim_py.core.table_file import read_text, table_rows
from astrasim_py.training.machine_states import state_of, states_of
from astrasim_py.training.models import Model, model_names
from astrasim_py.training.prices import Constants
from astrasim_py.training.schedules import SCHEDULES
from astrasim_py.training.software import CONSTANT_COLUMNS, TRAINING_COLUMNS, YES_NO, above_zero, from_zero, software
from astrasim_py.training.strategy import Layout, Training
from astrasim_py.training.system import System, system

#: Outcome of a run that ran out of memory.
OUT_OF_MEMORY = "oom"
#: Columns that must be there; others are for the reader.
REQUIRED = (
    "id", "source", "model", "layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab", "seq", "gpus", "gpu",
    "nic_gb_s_per_gpu", "dtype", "tp", "pp", "cp", "ep", "vp", "sharding", "recompute", "mbs", "gbs", "step_s",
)  # fmt: skip

#: GPU of a row → hardware preset.
GPUS = {
    "a100": "dgx_a100",
    "a100-40": "dgx_a100_40gb",
    "h100": "dgx_h100",
    "h100-500w": "hgx_h100_500w",
    "h200": "dgx_h200",
    "b200": "dgx_b200",
    "b300": "dgx_b300",
    "gb200": "gb200_nvl72",
    "gb300": "gb300_nvl72",
    "tpu-v4": "tpu_v4",
    "tpu-v5e": "tpu_v5e",
    "tpu-v5p": "tpu_v5p",
}
#: First letters of a number format of a row → ours; scaling recipes of 8 bits are one.
DTYPES = {"bf16": "bf16", "fp16": "fp16", "fp8": "fp8", "nvfp4": "fp4", "fp4": "fp4", "fp32": "fp32"}
_YES_NO_ONE = {**YES_NO, "1": True, "0": False}
#: Recomputation of a row → ours. `selective`: the MLA up-projection and the MLP's activation, a fifth of a forward
#: pass; `selective-light`: norms and activations; `minimal` keeps products, so attention is done again.
RECOMPUTE: dict[str, str | float] = {
    "none": "none",
    "unknown": "none",
    "full": "full",
    "attn": "attn",
    "selective": 0.2,
    "selective-light": "light",
    "selective-op": "selective_op",
    "selective-layer": "half",
    "minimal": "attn",
}


#: What software a source's rows ran, and what words of a row's note change: a source, ``*`` for all or empty for those
#: that are not listed; words, or empty; a preset, and cells that differ from it. Later lines count more.
RULES = Path(__file__).parents[1] / "data" / "validation" / "software.csv"
_EXPECTED: dict[Callable[[str], Any], str] = {from_zero: "a number from 0 on", above_zero: "a number above 0"}


@dataclass(frozen=True)
class TrainingRow:
    """One measured run. `problem`: why its step cannot be predicted; empty where it can. `state`: of its machine, by a
    test of its nodes; empty where there was none. `software`: the preset of its constants. `outcome`: ``ok`` or
    ``oom``, where it is told; `peak_gib`: printed peak memory, where it is.
    """

    place: str
    id: str
    source: str
    experts: bool
    measured: float
    layout: Layout[int] | None = None
    system: System | None = None
    constants: Constants = Constants()
    problem: str = ""
    state: str = ""
    software: str = ""
    outcome: str = ""
    peak_gib: float | None = None


def read_rows(path: str | os.PathLike, sources: Sequence[str] = (), state: str | None = None) -> list[TrainingRow]:
    """Rows of a CSV, in order, those that cannot be predicted with the reason; of these `sources`, all where empty.

    `state`: of machines of which it is known, whatever their tests say; others are sound.

    Raises UsageError: ``file:line``: what is wrong, and what to write instead.
    """
    place, title = os.fspath(path), "a CSV of training throughput"
    text = read_text(path, title)
    told = "outcome" in text.partition("\n")[0].split(",")  # what ran out of memory has no step time
    required = [key for key in REQUIRED if key != "step_s" or not told]
    rows = [_row(row, row_place, state) for row_place, row in table_rows(text, place, title, required)]
    names = dict.fromkeys(row.source for row in rows)
    for name in sources:
        if name not in names:
            raise UsageError("--only", f'{place} has no source "{name}"', f"write one of {', '.join(names)}")
    return [row for row in rows if not sources or row.source in sources]


def _row(row: Mapping[str, str], here: str, state: str | None) -> TrainingRow:
    outcome = row.get("outcome") or ""
    if outcome not in ("", "ok", OUT_OF_MEMORY):
        raise UsageError(f"{here}: outcome", f'"{outcome}" is no outcome', f"write ok or {OUT_OF_MEMORY}, or nothing")
    measured = _number(row, "step_s", here)
    failed = outcome == OUT_OF_MEMORY
    if (not measured or measured <= 0) and not failed:
        raise UsageError(f"{here}: step_s", f'"{row.get("step_s", "")}" is no step time', "write seconds, e.g. 3.5")
    result = TrainingRow(here, row["id"], row["source"], bool(_number(row, "experts", here)), measured or math.nan)
    result = replace(result, outcome=outcome, peak_gib=_rate(row, "mem_gib", here))
    test = _rate(row, "node_all_gather_gb_s", here)
    problem = _unreadable(row)
    if problem:
        return replace(result, problem=problem)
    result = replace(result, problem="it ran out of memory" if failed else _marked(row))
    preset, constants, keys = _software(row, here)
    try:
        layout = Training(**_training(row, here, keys)).layout(_whole(row, "gpus", here))
    except ScenarioError as error:
        return replace(result, problem=f"{error.problem}; {error.remedy}")
    nic = _rate(row, "nic_gb_s_per_gpu", here)
    machine = _machine(GPUS[row["gpu"]], nic)
    if state is not None:
        states = states_of(GPUS[row["gpu"]])
        machine = replace(machine, state=next((one for one in states if one.name == state), states[0]))
    elif test is not None:
        shown = state_of(GPUS[row["gpu"]], test)
        machine = replace(machine, state=shown, gather_gb_s=_rate(row, "nccl_all_gather_gb_s", here))
        result = replace(result, state=shown.name)
    return replace(result, layout=layout, system=machine, constants=constants, software=preset)


def _marked(row: Mapping[str, str]) -> str:
    """Why a row that can be read is kept out of errors; empty if it is not."""
    return f"marked as not predictable ({row.get('note') or 'no note'})" if row.get("predictable") == "0" else ""


def _unreadable(row: Mapping[str, str]) -> str:
    """Why the layout of a row is not known; empty if it is. What is marked as not predictable says so first."""
    if not row["layers"]:
        return "the architecture is not published"
    for key in _COUNTS:
        if not row[key]:
            return f"{key} is not stated"
    kind, at_sign, group = row["sharding"].partition("@")
    if kind not in _ZERO or (at_sign and not group.isdecimal()):
        return f'the sharding "{row["sharding"]}" is unknown; there are {", ".join(_ZERO)}, or zero1@8'
    if row.get("schedule") and row["schedule"] not in SCHEDULES:
        return f'the schedule "{row["schedule"]}" is unknown; there are {", ".join(SCHEDULES)}'
    if row["gpu"] not in GPUS:
        return f'no preset for the GPU "{row["gpu"]}"; there are {", ".join(GPUS)}'
    if _dtype(row) is None:
        return f'the number format "{row["dtype"]}" is unknown; there are {", ".join(DTYPES)}'
    if _recompute(row["recompute"]) is None:
        return f'the recomputation "{row["recompute"]}" is unknown; there are {", ".join(RECOMPUTE)}'
    return ""


def _training(row: Mapping[str, str], here: str, software: Mapping[str, Any]) -> dict[str, Any]:
    """Keys of `Training` of a row."""

    def whole(key: str) -> int:
        return _whole(row, key, here)

    sharding, _, group = row["sharding"].partition("@")
    keys: dict[str, Any] = {key: whole(key) for key in _COUNTS[1:]}
    if row.get("microbatches"):
        keys["gbs"] = _sequences(row, keys, here)
    if row.get("schedule") not in (None, "", "1f1b", "interleaved"):  # those follow from vp
        keys["schedule"] = row["schedule"]
    keys |= {"model": _model(row, here), "dtype": _dtype(row), "recompute": _recompute(row["recompute"])}
    keys["zero"] = _ZERO[sharding]
    if sharding == "hsdp":  # a full copy in every node, or in every slice of a torus
        group = str(_machine(GPUS[row["gpu"]], None).node // keys["tp"])
    if group:
        copies = whole("gpus") // keys["pp"] // keys["tp"]
        keys["zero_group"] = min(int(group), copies)
    sp = {"sp": True} if row["recompute"].endswith("+sp") else {}
    return {**keys, **software, **sp, "overlap": {"pp": False, **software.get("overlap", {})}}


def _sequences(row: Mapping[str, str], keys: Mapping[str, int], here: str) -> int:
    """Sequences of an iteration of a row that states microbatches, too; its `gbs` may count tokens."""
    copies = _whole(row, "gpus", here) // (keys["tp"] * keys["pp"] * keys["cp"])
    sequences = _whole(row, "microbatches", here) * keys["mbs"] * max(copies, 1)
    if keys["gbs"] not in (sequences, sequences * keys["seq"]):
        problem = f"gbs {keys['gbs']} is not {sequences} sequences, as microbatches x mbs x dp say"
        raise UsageError(f"{here}: microbatches", problem, "write one of the two, or both alike")
    return sequences


_COUNTS = ("gpus", "seq", "gbs", "mbs", "tp", "pp", "cp", "ep", "vp")
_ZERO = {"ddp": 0, "zero1": 1, "zero2": 2, "zero3": 3, "hsdp": 3}


def _model(row: Mapping[str, str], here: str) -> dict:
    """A preset's shape, or the plain transformer with a tied embedding; the columns count where they say more."""
    columns = {"layers", "hidden", "ffn", "heads", "kv_heads", "head_dim", "vocab"}
    keys = {key: _whole(row, key, here) for key in columns}
    if row["model"] in model_names():
        tied = {"tied": _tied(row, here)} if row.get("tied") else {}
        return {"base": row["model"], **{key: value for key, value in keys.items() if row[key]}, **tied}
    experts = {key: _whole(row, key, here) for key in ("experts", "topk", "moe_ffn") if row.get(key)}
    shape = {**keys, **experts, "tied": _tied(row, here)}
    return {**shape, "gated": _gated(row, shape, here)}


def _gated(row: Mapping[str, str], shape: Mapping[str, Any], here: str) -> bool:
    """Whether the MLP of a plain transformer has a gate: by its column, else by which is nearer to the parameters."""
    if text := row.get("gated"):
        if text not in _YES_NO_ONE:
            raise UsageError(f"{here}: gated", f'"{text}" is not yes or no', "write yes or no, or nothing")
        return _YES_NO_ONE[text]
    total = _number(row, "params_b", here)
    if not total:
        return False
    far = [abs(Model(**shape, gated=gated).params_total / 1e9 - total) for gated in (False, True)]
    return far[1] < far[0]


def _tied(row: Mapping[str, str], here: str) -> bool:
    """Whether input and output embedding are one matrix, as in a plain transformer that does not say."""
    text = row.get("tied") or "yes"
    if text not in _YES_NO_ONE:
        raise UsageError(f"{here}: tied", f'"{text}" is not yes or no', "write yes or no, or nothing")
    return _YES_NO_ONE[text]


def _software(row: Mapping[str, str], here: str) -> tuple[str, Constants, dict[str, Any]]:
    """The preset of the software of a row, its constants and keys of `Training`, as rules and columns say."""
    rules = _rules()
    source = row["source"] if row["source"] in {rule["source"] for rule in rules} else ""
    known = {**TRAINING_COLUMNS, **CONSTANT_COLUMNS}
    words: dict[str, str] = {}
    for rule in (*rules, row):
        if rule is row or (rule["source"] in (source, "*") and rule["note"] in row.get("note", "")):
            words |= {key: rule[key] for key in ("software", *known) if rule.get(key)}
    name = words.pop("software")
    try:
        preset = software(name)
    except ScenarioError as error:
        raise UsageError(f"{here}: software", error.problem, error.remedy) from None
    cells: dict[str, Any] = {}
    for key, text in words.items():
        try:
            cells[key] = known[key](text)
        except (KeyError, ValueError):
            expected = _EXPECTED.get(known[key], "yes or no")
            raise UsageError(f"{here}: {key}", f'"{text}" is not {expected}', f"write {expected}, or nothing") from None
    constants = {key: cells.pop(key) for key in CONSTANT_COLUMNS if key in cells}
    return name, replace(preset.constants, **constants), {**preset.keys, **cells}


@cache
def _rules() -> tuple[Mapping[str, str], ...]:
    with RULES.open(newline="") as file:
        return tuple(csv.DictReader(file))


@cache
def _machine(name: str, nic: float | None) -> System:
    return system(name, **({"outside": nic * 1e9} if nic else {}))


def _dtype(row: Mapping[str, str]) -> str | None:
    return DTYPES.get(row["dtype"].partition("-")[0])


def _recompute(text: str) -> str | float | None:
    text = text.removesuffix("+sp")
    if match := re.fullmatch(r"partial:(\d*\.?\d+)", text):
        return min(float(match[1]), 1.0)
    if match := re.fullmatch(r"full-(\d+)of([1-9]\d*)", text):  # full in some of the layers
        return min(int(match[1]) / int(match[2]), 1.0)
    return RECOMPUTE.get(text)


def _number(row: Mapping[str, str], key: str, here: str) -> float | None:
    text = row.get(key, "")
    try:
        value = float(text) if text else None
    except ValueError:
        value = math.nan
    if value is not None and not math.isfinite(value):
        raise UsageError(f"{here}: {key}", f'"{text}" is no number', "write a number, or nothing")
    return value


def _rate(row: Mapping[str, str], key: str, here: str) -> float | None:
    value = _number(row, key, here)
    if value is not None and value <= 0:
        raise UsageError(f"{here}: {key}", f'"{row[key]}" is no rate', "write GB/s, e.g. 50, or nothing")
    return value


def _whole(row: Mapping[str, str], key: str, here: str) -> int:
    value = _number(row, key, here)
    if value is None or value != int(value) or value < 1:
        raise UsageError(f"{here}: {key}", f'"{row.get(key, "")}" is no count', "write a whole number from 1 on")
    return int(value)
