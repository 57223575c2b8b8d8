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
class _NodesOfRank:
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
    states = [_NodesOfRank() for _ in range(1 if alike else ranks)]
    table: list[dict] = []
    names: set[str] = set()
    total = 0
    for number, item in enumerate(items):
        where = f"workload[{number}]"
        for label in item.after or ():
            if label not in names:
                raise ScenarioError(f"{where}.after", f'"{label}" is not an earlier item', "name one")
        if isinstance(item, Compute) and item.consumes is not None:
            others = [match for match in items[:number] if match.name == item.consumes]
            if not others or not isinstance(others[-1], Collective):
                problem = f'"{item.consumes}" is not a collective before it'
                raise ScenarioError(f"{where}.consumes", problem, "name one")
        copies = _nodes(item, ranks, listed, defined, where)
        if alike:
            copies = [((0,), node) for _, node in copies]
        total += sum(len(members) for members, _ in copies) * item.repeat
        if total > MAX_NODES:
            raise ScenarioError(where, f"the workload has {total} nodes, more than {MAX_NODES}", "repeat less")
        last_nodes: dict[int, tuple[int, ...]] = {}
        for _ in range(item.repeat):
            added: dict[int, tuple[int, ...]] = {}
            for node, (members, _) in enumerate(copies, len(table)):
                for rank in members:
                    state = states[rank]
                    if rank in last_nodes:
                        deps = last_nodes[rank]
                    elif item.after is None:
                        deps = state.last
                    else:
                        deps = tuple(n for label in item.after for n in state.named.get(label, ()))
                    added[rank] = (*added.get(rank, ()), len(state.nodes))
                    state.nodes.append(node)
                    state.deps.append(deps)
            last_nodes = added
        table += [node for _, node in copies]
        if item.name:
            names.add(item.name)
        for rank, nodes in last_nodes.items():
            state = states[rank]
            if isinstance(item, Compute) and item.consumes is not None:
                consume(state.uses, item, nodes, state.named, state.deps, f"{where}.consumes", f"rank {rank}")
            state.last = nodes
            if item.name:
                state.named[item.name] = nodes
    for number, item in enumerate(items):
        if isinstance(item, Compute) and item.produces is not None:
            others = [match for match in items[number + 1 :] if match.name == item.produces]
            if not others or not isinstance(others[0], Collective) or others[0].repeat > 1:
                problem = f'"{item.produces}" is not one collective after it'
                raise ScenarioError(f"workload[{number}].produces", problem, "name one, without repeat")
    for rank, state in enumerate(states):
        produce(state.uses, [table[node] for node in state.nodes], state.deps, "workload", f"rank {rank}")
    traces: dict[tuple, ExecutionTrace] = {}
    by_rank = []
    for state in states:
        same = tuple(state.nodes), tuple(state.deps)
        if same not in traces:
            nodes_of_rank = [table[node] | state.uses.get(nth, {}) for nth, node in enumerate(state.nodes)]
            traces[same] = _trace(nodes_of_rank, state.deps)
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
        labelled = [(group if len(listed) == 1 else f"{group}.{i}", members) for i, members in enumerate(listed)]
    else:
        label = "ranks " + " ".join(map(str, group))
        defined.setdefault(label, group)
        labelled = [(label, group)]
    for label, members in labelled:
        outside = [r for r in members if not 0 <= r < ranks]
        if outside:
            raise ScenarioError(
                f"{where}.group", f"{label} has rank {outside[0]}, and there are {ranks}", f"write 0..{ranks - 1}"
            )
    return labelled


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
        labelled = _members(item.group, ranks, groups, defined, where)
        return [(members, _collective(item, label, len(members), where)) for label, members in labelled]
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
    return [(range(ranks) if item.ranks is None else item.ranks, made_node) for made_node in nodes]


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
