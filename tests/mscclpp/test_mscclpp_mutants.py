"""Edits of public plans, and what independent runs show of them."""

from __future__ import annotations

import json

from oracle.mscclpp_mutants import spread
from oracle.mscclpp_oracle import Oracle

#: A second copy of these plans, or a plan that the oracle shows stuck or refused unedited: an edit shows nothing.
LEFT_OUT = ("exec__", "unit_tests__switch_", "unit_tests__signal_wait__signal_wait_fuse", "unit_tests__read_put_packet")
LEFT_OUT += ("unit_tests__reduce_copy_send_packet", "unit_tests__reduce_packet")
SMALL = ("repo__allreduce", "repo__reduce_tbg", "repo__transfer_pack", "single_node__allgather")
SMALL += ("single_node__allreduce_pipeline", "unit_tests__put__put_with_signal_and_flush_test")


def repaired(plan):
    """`reduce_tbg` without its race: chunks 0 and 1 are copied in the shares in which they are used."""
    gpus = []
    for gpu in plan["gpus"]:
        blocks = []
        for block in gpu["threadblocks"]:
            ops = []
            for op in block["ops"]:
                sides = {side: op[side][0] for side in ("src_buff", "dst_buff") if side in op}
                chunks = 2 if op["name"] == "copy" and sides["src_buff"]["index"] == 0 else 1
                for chunk in range(chunks):
                    parts = {s: [{**r, "index": r["index"] + chunk, "size": 1}] for s, r in sides.items()}
                    ops.append({**op, **parts} if chunks > 1 else op)
            blocks.append({**block, "ops": ops})
        gpus.append({**gpu, "threadblocks": blocks})
    return {**plan, "gpus": gpus}


class Judge:
    """What the oracle shows of edits of a plan: in one call and, where calls end in order, in two."""

    def __init__(self, plan):
        self.oracles = [Oracle(plan), Oracle(plan, calls=2)]
        kinds = {outcome.kind for outcome in self.oracles[0].outcomes(plan)}
        # A plan may end without order, which is a warning: its edits then show nothing of ends and of next calls.
        self.ignored = kinds & {"exit"}
        assert kinds - self.ignored == {"right"}
        if self.ignored:
            del self.oracles[1]

    def bad(self, plan):
        for oracle in self.oracles:
            outcomes = oracle.outcomes(plan, drawn=1, until_bad=not self.ignored)
            bad = {outcome.kind for outcome in outcomes} - self.ignored - {"right"}
            if bad:
                return min(bad)
        return None


def plans(golden, names=None):
    for path in sorted((golden / "mscclpp" / "plans").glob("*.json")):
        if path.stem in names if names else not path.stem.startswith(LEFT_OUT):
            plan = json.loads(path.read_text())
            yield path.stem, repaired(plan) if path.stem.endswith("reduce_tbg") else plan


def test_nops_order_data_and_signals_of_other_threads(golden):
    """Between signals, or where one thread does both, a nop is superfluous."""
    bad, whole = set(), set()
    for _, plan in plans(golden, SMALL):
        judge = Judge(plan)
        for mutant in spread(plan, 2):
            if mutant.kind == "drop nop":
                (bad if judge.bad(mutant.plan) else whole).add(mutant.detail)
    assert {"put·signal", "rres·signal", "rlxwait·put", "rlxwait·rres", "glres·signal", "wait·copy"} <= bad
    assert {"begin·rlxsignal", "rlxsignal·rlxwait", "wait·end", "wait·pwsf", "rre·copy", "get·res"} <= whole
    assert bad & whole <= {"copy·signal", "put·signal"}
