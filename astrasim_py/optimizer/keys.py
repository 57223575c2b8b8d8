"""Choices that are keys of a scenario: buckets of gradients, tiles and overlap, chunks by dimension."""

from collections.abc import Iterator, Mapping
from typing import Any

from astrasim_py.optimizer.choices import KeyChoice, holder
from astrasim_py.training.aliases import ours
from astrasim_py.training.strategy import Training
from astrasim_py.workload.items import Compute

_BUCKETS = ("1 B", "25 MiB", "100 MiB", "400 MiB", "1600 MiB")
_TILES = (1, 2, 4, 8, 16)
_CHUNKS = (1, 2, 4, 8, 16)
#: Kind of choice and values of each key of a training's `overlap`; those that it does not know are left out.
_OVERLAP = {"tp": ("tiles", (False, True, "tiles")), "ep": ("tiles", (False, True, "tiles"))}
_OVERLAP |= {"dp": ("buckets", (False, True, "buckets"))}


def in_our_names(config: dict[str, Any]) -> None:
    """Write the keys of a training in the names of this package, so that they can be changed."""
    for keys in (config, *config.get("jobs", {}).values()):
        workload = keys.get("workload")
        if isinstance(workload, Mapping) and "training" in workload:
            keys["workload"] = {**workload, "training": ours(workload["training"], Training.model_fields)}


def is_training(config: dict[str, Any], job: str) -> bool:
    """Whether the workload of a job is a generated training."""
    workload = holder(config, job)["workload"]
    return isinstance(workload, Mapping) and "training" in workload


def key_choices(config: dict[str, Any], kinds: tuple[str, ...]) -> Iterator[KeyChoice]:
    """The choices of the keys of all jobs; some of their values may not be valid, or change nothing."""
    for job in config.get("jobs") or ("",):
        workload = holder(config, job)["workload"]
        if is_training(config, job):
            yield from _of_training(workload["training"], job, kinds)
        elif not isinstance(workload, Mapping) and "tiles" in kinds and "tiles" in Compute.model_fields:
            yield from _of_items(workload, job)
    if "chunks" in kinds and config.get("collectives") is not None:
        yield _choice("chunks", "chunks by dimension", "", ("collectives", "chunks"), config, _CHUNKS)


def _of_training(training: Mapping[str, Any], job: str, kinds: tuple[str, ...]) -> Iterator[KeyChoice]:
    keys, below = {"workload": {"training": dict(training)}}, ("workload", "training")
    if "buckets" in kinds:
        yield _choice("buckets", "bucket of gradients", job, (*below, "bucket"), keys, (None, *_BUCKETS))
    for key, (kind, values) in _OVERLAP.items():
        if kind in kinds:
            yield _choice(kind, f"overlap of {key}", job, (*below, "overlap", key), keys, values)


def _of_items(items: list[Mapping[str, Any]], job: str) -> Iterator[KeyChoice]:
    for place, item in enumerate(items):
        body = item.get("compute") if isinstance(item, Mapping) else None
        if isinstance(body, Mapping) and not body.keys().isdisjoint(("consumes", "produces")):
            path = ("workload", place, "compute", "tiles")
            name = f"tiles of {item.get('name') or body.get('name') or f'workload[{place}]'}"
            yield _choice("tiles", name, job, path, {"workload": items}, _TILES)


def _choice(kind: str, name: str, job: str, path: tuple, keys: Any, values: tuple) -> KeyChoice:
    """The choice of a key, with the value that it has first."""
    part = keys
    for key in path:
        part = part.get(key) if isinstance(part, Mapping) else part[key] if isinstance(part, list | tuple) else None
    return KeyChoice(kind=kind, name=name, job=job, values=tuple(dict.fromkeys((part, *values))), path=path)
