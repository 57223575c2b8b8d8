"""Execution plans as JSON text: one operation a line, always the same text for the same plan."""

import json
import os
from collections.abc import Iterator, Mapping

from astrasim_py.core.files import write_file
from astrasim_py.mscclpp.from_algorithm import plan_document, window_of
from astrasim_py.mscclpp.to_traces import recorded_plan
from astrasim_py.program.algorithm import Algorithm


def write_plan(
    path: str | os.PathLike[str],
    algorithm: Algorithm,
    *,
    protocol: str | None = None,
    npus_per_node: int | None = None,
    min_bytes: int | None = None,
    max_bytes: int | None = None,
) -> Mapping[str, object]:
    """Write an algorithm as an execution plan, whole or not at all.

    An algorithm that was read from a plan becomes this plan again, unless another protocol or nodes are asked for;
    `min_bytes` and `max_bytes` replace its window. For other ones see `from_algorithm.plan_document`. Returns what was
    written. Raises OutputError: the file cannot be written.
    """
    document: Mapping[str, object]
    plan = recorded_plan(algorithm) if npus_per_node is None else None
    if plan is None or protocol not in (None, plan.protocol):
        document = plan_document(
            algorithm, protocol=protocol, npus_per_node=npus_per_node, min_bytes=min_bytes, max_bytes=max_bytes
        )
    elif min_bytes is None and max_bytes is None:
        document = plan.document
    else:
        low, high = plan.least if min_bytes is None else min_bytes, plan.most if max_bytes is None else max_bytes
        document = {**plan.document, **window_of(low, high)}
    write_file(path, plan_text(document).encode())
    return document


def plan_text(document: Mapping[str, object]) -> str:
    """The text of a plan's JSON object, which keeps its keys in their order.

    >>> print(plan_text({"name": "none", "gpus": [{"id": 0, "threadblocks": []}]}))
    {
      "name": "none",
      "gpus": [
        {
          "id": 0,
          "threadblocks": []
        }
      ]
    }
    <BLANKLINE>
    """
    return "".join(_lines(document, 0, ())) + "\n"


#: Keys to the values that are written in several lines, from the top; ``*`` for the items of a list.
_OPEN = {
    (),
    ("gpus",),
    ("gpus", "*"),
    ("gpus", "*", "threadblocks"),
    ("gpus", "*", "threadblocks", "*"),
    ("gpus", "*", "threadblocks", "*", "ops"),
}


def _lines(value: object, depth: int, path: tuple[str, ...]) -> Iterator[str]:
    if path not in _OPEN or not isinstance(value, dict | list) or not value:
        yield json.dumps(value, ensure_ascii=False)
        return
    keyed = isinstance(value, dict)
    yield "{" if keyed else "["
    comma = ""
    for key, item in value.items() if isinstance(value, dict) else enumerate(value):
        yield f"{comma}\n{'  ' * (depth + 1)}"
        if keyed:
            yield f"{json.dumps(key, ensure_ascii=False)}: "
        yield from _lines(item, depth + 1, (*path, str(key) if keyed else "*"))
        comma = ","
    yield f"\n{'  ' * depth}" + ("}" if keyed else "]")
