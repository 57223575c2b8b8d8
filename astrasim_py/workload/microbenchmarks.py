"""Workloads made from a list of items: collectives, compute, messages and memory requests, as Chakra ETs."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from astrasim_py.chakra.schema import COLLECTIVE_CODES, MISSING, NodeType
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.core.errors import InternalError, ScenarioError
from astrasim_py.core.units import format_size, format_time
from astrasim_py.workload.items import Collective, Compute, Item, Memory, Send
from astrasim_py.workload.tiles import TILE_COLUMNS, Uses, consume, in_tiles, produce

_PS_PER_US = 10**6

#: Most nodes that a generated workload may have, all ranks together; where all do the same, of one.
MAX_NODES = 2**24


@dataclass(slots=True)
class _Rank:
    nodes: list[int] = field(default_factory=list)  # numbers of nodes, which ranks share
    deps: list[tuple[int, ...]] = field(default_factory=list)
    last: tuple[int, ...] = ()  # nodes of the item before
    named: dict[str, tuple[int, ...]] = field(default_factory=dict)
    uses: Uses = field(default_factory=dict)


def generate(
    items: Sequence[Item],
    ranks: int,
    groups: Mapping[str, Sequence[Sequence[int]]] | None = None,
    *,
    name: str = "generated",
) -> Workload:
    """Make a workload of items, which run one after the other on every rank, unless `after` says otherwise.

    `groups`: each name stands for one group or several disjoint ones, then called ``name.0``, ``name.1``, …; a
    collective on the name is one per group. Traces have two attributes of our own: ``coll_size`` (the exact full
    buffer) and ``duration_ps``, and those of tiles. Ranks that do the same share one trace. Raises ScenarioError: a
    rank, group, name or root that does not exist; too many nodes; tiles of a collective that is not before or after.
    """
    listed = {key: tuple(map(tuple, several)) for key, several in (groups or {}).items()}
    defined: dict[str, tuple[int, ...]] = {}
    for key, several in listed.items():
        for index, group in enumerate(several):
            defined[key if len(several) == 1 else f"{key}.{index}"] = group
    alike = all(
        item.group in (None, "world") if isinstance(item, Collective) else getattr(item, "ranks", ()) is None
        for item in items
    )
    state = [_Rank() for _ in range(1 if alike else ranks)]
    known: list[dict] = []
    names: set[str] = set()
    total = 0
    for number, item in enumerate(items):
        where = f"workload[{number}]"
        for wanted in item.after or ():
            if wanted not in names:
                raise ScenarioError(f"{where}.after", f'"{wanted}" is not an earlier item', "name one")
        if isinstance(item, Compute) and item.consumes is not None:
            others = [each for each in items[:number] if each.name == item.consumes]
            if not others or not isinstance(others[-1], Collective):
                what = f'"{item.consumes}" is not a collective before it'
                raise ScenarioError(f"{where}.consumes", what, "name one")
        made = _nodes(item, ranks, listed, defined, where)
        if alike:
            made = [((0,), node) for _, node in made]
        total += sum(len(members) for members, _ in made) * item.repeat
        if total > MAX_NODES:
            raise ScenarioError(where, f"the workload has {total} nodes, more than {MAX_NODES}", "repeat less")
        own: dict[int, tuple[int, ...]] = {}
        for _ in range(item.repeat):
            added: dict[int, tuple[int, ...]] = {}
            for node, (members, _) in enumerate(made, len(known)):
                for rank in members:
                    mine = state[rank]
                    if rank in own:
                        deps = own[rank]
                    elif item.after is None:
                        deps = mine.last
                    else:
                        deps = tuple(n for wanted in item.after for n in mine.named.get(wanted, ()))
                    added[rank] = (*added.get(rank, ()), len(mine.nodes))
                    mine.nodes.append(node)
                    mine.deps.append(deps)
            own = added
        known += [node for _, node in made]
        if item.name:
            names.add(item.name)
        for rank, nodes in own.items():
            mine = state[rank]
            if isinstance(item, Compute) and item.consumes is not None:
                consume(mine.uses, item, nodes, mine.named, mine.deps, f"{where}.consumes", f"rank {rank}")
            mine.last = nodes
            if item.name:
                mine.named[item.name] = nodes
    for number, item in enumerate(items):
        if isinstance(item, Compute) and item.produces is not None:
            others = [each for each in items[number + 1 :] if each.name == item.produces]
            if not others or not isinstance(others[0], Collective) or others[0].repeat > 1:
                what = f'"{item.produces}" is not one collective after it'
                raise ScenarioError(f"workload[{number}].produces", what, "name one, without repeat")
    for rank, mine in enumerate(state):
        produce(mine.uses, [known[node] for node in mine.nodes], mine.deps, "workload", f"rank {rank}")
    traces: dict[tuple, ExecutionTrace] = {}
    by_rank = []
    for mine in state:
        same = tuple(mine.nodes), tuple(mine.deps)
        if same not in traces:
            nodes_of_rank = [known[node] | mine.uses.get(at, {}) for at, node in enumerate(mine.nodes)]
            traces[same] = _trace(nodes_of_rank, mine.deps)
        by_rank.append(traces[same])
    by_rank *= ranks if alike else 1
    return Workload(traces=tuple(by_rank), groups=defined, name=name)


def _members(
    group: str | tuple[int, ...] | None, ranks: int, groups, defined, where: str
) -> list[tuple[str, Sequence[int]]]:
    if group in (None, "world"):
        return [("", range(ranks))]
    if isinstance(group, str):
        if group not in groups:
            raise ScenarioError(f"{where}.group", f'group "{group}" is not defined', "define it under groups")
        listed = groups[group]
        found = [(group if len(listed) == 1 else f"{group}.{i}", members) for i, members in enumerate(listed)]
    else:
        label = "ranks " + " ".join(map(str, group))
        defined.setdefault(label, group)
        found = [(label, group)]
    for label, members in found:
        outside = [r for r in members if not 0 <= r < ranks]
        if outside:
            raise ScenarioError(
                f"{where}.group", f"{label} has rank {outside[0]}, and there are {ranks}", f"write 0..{ranks - 1}"
            )
    return found


def _collective(item: Collective, label: str, n: int, where: str) -> dict:
    if not 0 <= item.root < n:
        raise ScenarioError(f"{where}.root", f"{item.root} is not a position in a group of {n}", f"0..{n - 1}")
    node = {
        "type": NodeType.COMM_COLL,
        "name": item.name or f"{item.type} {format_size(item.size)}",
        "comm_type": COLLECTIVE_CODES[item.type],
        "comm_size": -(-item.size // n) if item.type == "all_gather" else item.size,
        "coll_size": item.size,
        "is_cpu_op": 0,
    }
    if item.root:
        node["comm_root"] = item.root
    if label:
        node["pg_name"] = label
    return node


def _nodes(item: Item, ranks: int, groups, defined, where: str) -> list[tuple[Sequence[int], dict]]:
    if isinstance(item, Collective):
        found = _members(item.group, ranks, groups, defined, where)
        return [(members, _collective(item, label, len(members), where)) for label, members in found]
    if isinstance(item, Send):
        _check_ranks(f"{where}.from", [item.source], ranks)
        _check_ranks(f"{where}.to", [item.to], ranks)
        common = {"comm_src": item.source, "comm_dst": item.to, "comm_size": item.size, "comm_tag": item.tag}
        common["is_cpu_op"] = 0
        label = item.name or format_size(item.size)
        return [
            ((item.source,), {"type": NodeType.COMM_SEND, "name": f"send {label} to {item.to}", **common}),
            ((item.to,), {"type": NodeType.COMM_RECV, "name": f"receive {label} from {item.source}", **common}),
        ]
    if not isinstance(item, Memory | Compute):
        raise InternalError(f"{where} is a {type(item).__name__}, which makes no nodes")
    _check_ranks(f"{where}.ranks", item.ranks or (), ranks)
    node: dict[str, Any]
    if isinstance(item, Memory):
        kind, verb, size = NodeType.MEM_LOAD, "load", item.load
        if size is None:
            kind, verb, size = NodeType.MEM_STORE, "store", item.store or 0
        node = {"type": kind, "name": f"{verb} {format_size(size)}", "tensor_size": size}
    elif item.time is not None:
        node = {"name": f"compute {format_time(item.time)}", "duration_ps": item.time}
    else:
        node = {"name": f"compute {item.operations} operations", "num_ops": item.operations}
        node["tensor_size"] = item.bytes or 0
    node = {"type": NodeType.COMP, **node, "name": item.name or node["name"], "is_cpu_op": 0}
    nodes = in_tiles(node, item, where) if isinstance(item, Compute) else [node]
    return [(range(ranks) if item.ranks is None else item.ranks, each) for each in nodes]


def _check_ranks(place: str, listed: Sequence[int], ranks: int) -> None:
    for rank in listed:
        if not 0 <= rank < ranks:
            raise ScenarioError(place, f"rank {rank} does not exist", f"write 0..{ranks - 1}")


_COLUMNS = (
    *("comm_type", "comm_size", "coll_size", "comm_root", "comm_src", "comm_dst", "comm_tag", "is_cpu_op"),
    *("num_ops", "tensor_size", "duration_ps", *TILE_COLUMNS),
)


def _trace(nodes: Sequence[dict], deps: Sequence[tuple[int, ...]]) -> ExecutionTrace:
    ptr = np.cumsum([0, *map(len, deps)], dtype=np.int64)
    columns = {c: np.array([node.get(c, MISSING) for node in nodes], dtype=np.int64) for c in _COLUMNS}
    labels = [node.get("pg_name") for node in nodes]
    return ExecutionTrace.from_columns(
        node_id=np.arange(len(nodes), dtype=np.uint64),
        type=np.array([node["type"] for node in nodes], dtype=np.int8),
        data_deps=Csr(ptr, np.array([p for d in deps for p in d], dtype=np.uint64)),
        duration_micros=np.array([-(-node.get("duration_ps", 0) // _PS_PER_US) for node in nodes], dtype=np.uint64),
        names=[node["name"] for node in nodes], pg_name=labels if any(labels) else None,
        **{c: values for c, values in columns.items() if (values != MISSING).any()},
    )  # fmt: skip
