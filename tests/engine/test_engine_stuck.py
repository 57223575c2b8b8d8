"""What a stuck run says of messages that nobody receives."""

from __future__ import annotations

from worlds.problems import world

from astrasim_py.core.errors import AstraError
from astrasim_py.core.records import Records
from astrasim_py.engine.simulation import plan_for, simulate
from astrasim_py.engine.stuck import explanation


def starts(records: Records) -> dict[tuple[int, int, int], int]:
    """When each node was issued."""
    columns = (records.node[name].tolist() for name in ("rank", "instance", "node", "start"))
    return {(rank, instance, node): start for rank, instance, node, start in zip(*columns, strict=True)}


def test_a_message_that_nobody_receives_is_told_with_the_time_of_its_send():
    found = earlier = 0
    seed = 0
    while found < 12 or earlier < 6:
        plan = plan_for(world(seed))
        seed += 1
        assert seed < 400
        try:
            if simulate(plan, engine="compiled", level="summary").outcome.status != "stuck":
                continue
        except AstraError:
            continue
        for engine in ("simpy", "compiled"):
            records = simulate(plan, engine=engine, level="nodes")
            issued = starts(records)
            for entry in records.outcome.waiting:
                if entry.kind != "send" or entry.asks or entry.slots or entry.counter >= 0:
                    continue
                assert entry.since == issued[entry.rank, entry.instance, entry.node]
                assert any(", sent at " in line for line in explanation(records.outcome))
                found += 1
                earlier += entry.since < records.makespan
