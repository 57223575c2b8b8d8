"""Keys of Megatron, TorchTitan and DeepSpeed, translated to ours."""

import csv
from collections.abc import Callable, Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from astrasim_py.core.fields import did_you_mean, shown, wrong

#: Keys by system: those that only have another name, stand for one of ours, or only say more about another one; and
#: those that need a translation.
_TABLE = Path(__file__).parents[1] / "data" / "training" / "aliases.csv"
_SCHEDULES = {"1f1b": "1f1b", "gpipe": "gpipe", "interleaved1f1b": "interleaved", "zbvzerobubble": "zbv"}

#: What a key and its value say in our names; the second argument is all that is written, in our names where they are.
Translation = Callable[[Any, Mapping[str, Any]], dict[str, Any]]


def ours(written: Mapping[str, Any], known: Iterable[str]) -> dict[str, Any]:
    """The keys of a training in our names; unknown keys stay, and the model refuses them.

    Raises PydanticCustomError: a key is given twice, or has no counterpart here.
    """
    written = _nested(written)
    keys = {key: value for key, value in written.items() if key in known or key not in _TRANSLATED}
    source_of = {key: key for key in keys}
    if isinstance(keys.get("overlap"), Mapping):
        source_of |= {f"overlap.{key}": "overlap" for key in keys["overlap"]}
    for alias, translate in _TRANSLATED.items():  # those that need others in our names come last
        if alias not in written:
            continue
        for key, value in translate(written[alias], {**written, **keys}).items():
            if key in source_of:
                raise wrong(f"says the same as {source_of[key]}", "write one of the two", (alias, "@key"))
            source_of[key] = alias
            group, dot, inner = key.partition(".")
            if dot:
                others = keys.get(group, {})
                keys[group] = {**others, inner: value} if isinstance(others, Mapping) else others
            else:
                keys[key] = value
    return keys


def _nested(written: Mapping[str, Any]) -> Mapping[str, Any]:
    """Keys such as ``zero_optimization.stage`` as mappings. Raises PydanticCustomError: one is given twice."""
    nested = {key: value for key, value in written.items() if "." not in key}
    for key, value in written.items():
        group, dot, inner = key.partition(".")
        if dot:
            others = nested.setdefault(group, {})
            if not isinstance(others, Mapping) or inner in others:
                raise wrong(f"is beside {group}, which says it", f"write it in {group}", (key, "@key"))
            nested[group] = {**others, inner: value}
    return nested


def _one_of(value: Any, known: Mapping[Any, Any], key: str) -> Any:
    name = value.lower() if isinstance(value, str) else value
    if isinstance(name, str | None) and name in known:
        return known[name]
    words = [word for word in known if word is not None]
    raise wrong(f"{shown(value)} has no counterpart here", did_you_mean(str(value), words), (key,))


def _beside(key: str, main: str) -> Translation:
    def check(value: Any, written: Mapping[str, Any]) -> dict[str, Any]:
        if main not in written:
            raise wrong(f"without {main}", f"write {main} besides", (key, "@key"))
        return {}

    return check


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value > 0


def _count(written: Mapping[str, Any], key: str) -> int:
    """The value of one of our keys, 1 by default; the model refuses values that are no numbers."""
    return written[key] if _is_count(written.get(key)) else 1


def _switch(value: Any, key: str) -> bool:
    if isinstance(value, bool):
        return value
    raise wrong(f"{shown(value)} is not true or false", "write true or false", (key,))


def _standing_for(key: str, our_key: str, value: int) -> Translation:
    return lambda on, written: {our_key: value} if _switch(on, key) else {}


def _distributed_optimizer(on: Any, written: Mapping[str, Any]) -> dict[str, Any]:
    is_on = _switch(on, "use_distributed_optimizer")
    more = written.get("use_megatron_fsdp") or written.get("use_torch_fsdp2")
    return {} if more else {"zero": int(is_on)}


def _recompute(granularity: Any, written: Mapping[str, Any]) -> dict[str, Any]:
    key = "recompute_granularity"
    kind = _one_of(granularity, {None: "none", "none": "none", "full": "full", "selective": "selective"}, key)
    for other in ("recompute_modules",) * (kind == "none") + ("recompute_method", "recompute_num_layers"):
        if kind != "full" and written.get(other) is not None:
            raise wrong(f"does nothing with {key} {kind}", f"write {key}: full, or drop it", (other, "@key"))
    if kind == "none":
        return {"recompute": "none"}
    if kind == "selective":
        if written.get("recompute_modules") not in (None, ["core_attn"], ("core_attn",)):
            remedy = "write [core_attn], or recompute: with the part of a layer that is computed again, e.g. 0.2"
            raise wrong("only core_attn has a counterpart here", remedy, ("recompute_modules",))
        return {"recompute": "attn"}
    layers, method = written.get("recompute_num_layers"), written.get("recompute_method")
    known = {None: "uniform", "uniform": "uniform", "block": "block"}
    if _one_of(method, known, "recompute_method") == "block":
        raise wrong(
            "block counts layers of a stage", "write recompute: with their part, e.g. 0.25", ("recompute_method",)
        )
    if layers not in (None, 1):
        problem = f"checkpoints every {shown(layers)} layers have no counterpart here"
        raise wrong(problem, "write 1, or drop it", ("recompute_num_layers",))
    return {"recompute": "full"}


def _activation_checkpoint(value: Any, written: Mapping[str, Any]) -> dict[str, Any]:
    key = "activation_checkpoint"
    if not isinstance(value, Mapping):
        raise wrong(f"{shown(value)} is not a mapping", "write {mode: full}", (key,))
    if not value.keys() <= {"mode", "selective_ac_option"}:
        raise wrong("only mode and selective_ac_option have a counterpart here", "write {mode: full}", (key,))
    mode = _one_of(value.get("mode"), {"none": "none", "full": "full", "selective": "selective"}, key)
    if mode != "selective":
        return {"recompute": mode}
    option = str(value.get("selective_ac_option", "op"))
    if option == "op":
        return {"recompute": "selective_op"}
    if not option.isdecimal() or not int(option):
        raise wrong(f"{shown(option)} is no option", 'write op, or "2" for every second layer', (key,))
    return {"recompute": {"1": "full", "2": "half"}.get(option, 1 / int(option))}


def _reduce_overlap(on: Any, written: Mapping[str, Any]) -> dict[str, Any]:
    sharded = written.get("use_distributed_optimizer") or written.get("zero")
    gather = written.get("overlap_param_gather", False if sharded else on)
    if _switch(on, "overlap_grad_reduce") != _switch(gather, "overlap_param_gather"):
        raise wrong("differs from overlap_param_gather", "write the same for both", ("overlap_grad_reduce", "@key"))
    return {"overlap.dp": on}


def _schedule(name: Any, written: Mapping[str, Any]) -> dict[str, Any]:
    schedule = _one_of(name, _SCHEDULES, "pipeline_parallel_schedule")
    several = schedule in ("interleaved", "zbv") and "vp" not in written
    return {"schedule": schedule} | ({"vp": 2} if several else {})


def _shard_degree(shard: Any, written: Mapping[str, Any]) -> dict[str, Any]:
    """Degrees multiply; -1 fills."""
    copies = written.get("data_parallel_replicate_degree", 1)
    for key, degree in (("data_parallel_shard_degree", shard), ("data_parallel_replicate_degree", copies)):
        if not _is_count(degree) and (degree, key) != (-1, "data_parallel_shard_degree"):
            raise wrong(f"{shown(degree)} is not a degree", "write a whole number from 1, or shard degree -1", (key,))
    keys: dict[str, Any] = {"dp": "fill" if shard == -1 else shard * copies}
    when = written.get("fsdp_reshard_after_forward", "default")
    usual = 2 if _count(written, "pp") > 1 else 3
    zero = _one_of(when, {"default": usual, "always": 3, "never": 2}, "fsdp_reshard_after_forward")
    if shard == 1:
        return keys | {"zero": 0}
    return keys | {"zero": zero, **({"zero_copies": copies} if copies > 1 else {})}


def _zero_optimization(value: Any, written: Mapping[str, Any]) -> dict[str, Any]:
    key = "zero_optimization"
    names = {"stage": "zero", "overlap_comm": "overlap.dp"}
    if not isinstance(value, Mapping) or not all(name in names for name in value):
        raise wrong("only stage and overlap_comm have a counterpart here", "write {stage: 1}", (key,))
    return {names[name]: setting for name, setting in value.items()}


def _local_batch(size: Any, written: Mapping[str, Any]) -> dict[str, Any]:
    """All microbatches of a rank together; TorchTitan takes as many as there are stages."""
    stages = _count(written, "pp")
    count = stages * _count(written, "vp") if stages > 1 else 1
    if not _is_count(size) or size % count:
        problem = f"{shown(size)} does not hold {count} microbatches, one per stage"
        raise wrong(problem, f"write a multiple of {count}, or mbs and gbs", ("local_batch_size",))
    keys = {"mbs": size // count}
    return keys if "gbs" in written else keys | {"microbatches": count}


def _renamed(key: str) -> Translation:
    return lambda value, written: {key: value}


#: Translations of keys that the table lists alone.
_TRANSLATIONS: dict[str, Translation] = {
    "use_distributed_optimizer": _distributed_optimizer,
    "recompute_granularity": _recompute,
    "activation_checkpoint": _activation_checkpoint,
    "overlap_grad_reduce": _reduce_overlap,
    "pipeline_parallel_schedule": _schedule,
    "data_parallel_shard_degree": _shard_degree,
    "zero_optimization": _zero_optimization,
    "local_batch_size": _local_batch,
}


def _from_table() -> Iterator[tuple[str, Translation]]:
    with _TABLE.open(newline="") as file:
        for row in csv.DictReader(file):
            key, our_key = row["key"], row["ours"]
            if row["beside"]:
                yield key, _beside(key, row["beside"])
            elif row["true"]:
                yield key, _standing_for(key, our_key, int(row["true"]))
            else:
                yield key, _renamed(our_key) if our_key else _TRANSLATIONS[key]


_TRANSLATED = dict(_from_table())
#: Every key that `ours` translates.
FOREIGN_KEYS = tuple(_TRANSLATED)
