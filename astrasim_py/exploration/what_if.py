"""What other rates, more memory, other rings or more NPUs change: each priced over all configurations again."""

from collections.abc import Iterator
from dataclasses import replace
from fractions import Fraction
from typing import Any

from astrasim_py.exploration.grid import grid_of
from astrasim_py.exploration.search import Priced, price
from astrasim_py.report.training import PARTS
from astrasim_py.topology.hardware import Compute, ExpandedMemory
from astrasim_py.training.network import NetworkCosts
from astrasim_py.training.prices import Prices

#: Clusters of a scaling curve, as parts of the one explored.
_SCALES = (Fraction(1, 8), Fraction(1, 4), Fraction(1, 2), Fraction(1), Fraction(2), Fraction(4))


def what_if(priced: Priced) -> list[dict[str, Any]]:
    """Changes of the machine, the first row without any.

    Each row: ``change``; ``same_step_s``, the step of the configuration that is the best without it; ``step_s`` and
    ``configuration`` of the new best; ``speedup`` over the old best; ``bottleneck``, the largest part of its
    step.
    """
    best = priced.best()
    before = float(priced.seconds[best])
    rows = []
    for change, prices in (("as it is", priced.prices), *_changes(priced)):
        changed = priced if prices is priced.prices else price(priced.exploration, priced.grid, prices)
        number = changed.best()
        row, seconds = changed.rows([number])[0], float(changed.seconds[number])
        rows.append(
            {
                "change": change,
                "same_step_s": float(changed.seconds[best]),
                "step_s": seconds,
                "speedup": before / seconds,
                "configuration": row["configuration"],
                "bottleneck": bottleneck(row["parts_s"]),
            }
        )
    return rows


def bottleneck(parts: dict[str, float]) -> str:
    """The largest part of a step; behind computation also the next one, with its share."""
    sums = {"computation": parts["forward"] + parts["backward"] + parts["optimizer"]}
    sums |= {name: seconds for name, seconds in parts.items() if name not in ("forward", "backward", "optimizer")}
    first, second = sorted(sums, key=lambda key: -sums[key])[:2]
    if first != "computation":
        return PARTS.get(first, first)
    share = 100 * sums[second] / sum(sums.values())
    return f"{first}, then {PARTS.get(second, second)}: {share:.1f} %"


def _changes(priced: Priced) -> Iterator[tuple[str, Prices]]:
    prices, factors = priced.prices, priced.exploration.keys.what_if
    system, compute = prices.system, prices.system.compute
    memory, flops = (Fraction(factors.memory_bandwidth), Fraction(factors.flops))

    def computing(**changed: Any) -> Prices:
        values: Compute = compute.model_copy(update=changed)
        return replace(prices, system=replace(system, compute=values))

    def linked(*, near: float = 1.0, far: float = 1.0) -> Prices:
        faster = replace(system, inside=system.inside * near, outside=system.outside * far)
        costs = prices.network
        network = costs and NetworkCosts(costs.topology, costs.select, near=near * costs.near, far=far * costs.far)
        return replace(prices, system=faster, network=network)

    yield f"{factors.nic:g} x NIC", linked(far=factors.nic)
    yield f"{factors.nvlink:g} x NVLink", linked(near=factors.nvlink)
    yield f"{factors.memory_bandwidth:g} x HBM", computing(memory_bandwidth=compute.memory_bandwidth * memory)
    yield (
        f"{factors.flops:g} x FLOPs",
        computing(peak={name: rate * flops for name, rate in compute.peak.items()}),
    )
    if compute.expanded_memory is None:
        size, rate = factors.expanded_memory, compute.memory_bandwidth / 4
        more = ExpandedMemory(size=size, bandwidth=rate, policy="placement")
        yield f"+ {size / 1e9:g} GB expanded memory", computing(expanded_memory=more)
    yield "collectives along dimensions", replace(prices, network=priced.exploration.hierarchical)


def scaling(priced: Priced) -> list[dict[str, Any]]:
    """The best configuration on parts and multiples of the cluster, where they are whole nodes and one is possible.

    Rings are priced by the rates of a node and of its NICs: there are no routes of clusters of other sizes.
    """
    rows = []
    exploration, here = priced.exploration, priced.prices.system
    other = replace(here, gather_gb_s=None)  # what nccl-tests measured is of as many nodes
    node = min(priced.prices.system.node, exploration.ranks)
    for scale in _SCALES:
        ranks = int(exploration.ranks * scale)
        if ranks != exploration.ranks * scale or ranks % node:
            continue
        machine = here if ranks == exploration.ranks else other
        prices = replace(priced.prices, network=None, system=machine)
        resized = price(exploration, grid_of(exploration, ranks), prices)
        if len(resized.possible):
            row = resized.rows(resized.possible[:1])[0]
            rows.append({key: row[key] for key in ("ranks", "step_s", "tokens_per_s_per_gpu", "configuration")})
    return rows
