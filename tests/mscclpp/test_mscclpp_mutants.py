"""Edits of public plans, and what independent runs show of them."""

from __future__ import annotations

import json
from collections import Counter

import pytest
from oracle.mscclpp_cells import COLLECTIVES, shape_of
from oracle.mscclpp_mutants import spread
from oracle.mscclpp_oracle import Oracle

from astrasim_py.mscclpp.reader import parse_plan
from astrasim_py.mscclpp.verify import verify_plan

#: A second copy of these plans, or a plan that the oracle shows stuck or refused unedited: an edit shows nothing.
LEFT_OUT = ("exec__", "unit_tests__switch_", "unit_tests__signal_wait__signal_wait_fuse", "unit_tests__read_put_packet")
LEFT_OUT += ("unit_tests__reduce_copy_send_packet", "unit_tests__reduce_packet")
SMALL = ("repo__allreduce", "repo__reduce_tbg", "repo__transfer_pack", "single_node__allgather")
SMALL += ("single_node__allreduce_pipeline", "unit_tests__put__put_with_signal_and_flush_test")

#: What one thread does itself after a wait; the verifier wants a nop all the same. The copy is one that nothing uses.
SAME_THREAD = ("wait·pws", "wait·pwsf", "wait·sem_release", "copy·signal")


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
    """What the oracle shows of edits of a plan.

    Outcomes are those of the promise; without one they must be those of the edited plan in program order.
    """

    def __init__(self, plan):
        self.shape = shape_of(plan)
        self.promise = plan if plan["collective"] in COLLECTIVES else None
        # A plan may end while its proxies read, which is a warning: its edits then show nothing of ends and next calls.
        self.unread = "exit" in self.kinds(plan, lenient=True)
        assert self.severity(plan) in (None, "warning")

    def kinds(self, plan, calls=1, lenient=False):
        oracle = Oracle(self.promise or plan, self.shape, calls, lenient)
        return {outcome.kind for outcome in oracle.outcomes(plan, drawn=1, until_bad=True)} - {"right"}

    def severity(self, plan):
        """error: in a call or two a value is wrong, or it never ends; warning: only relaxed signals prevent that."""
        kinds = self.kinds(plan)
        if self.unread or kinds - {"exit"}:
            return "error" if kinds - {"exit"} else None
        if not kinds:
            return "error" if self.kinds(plan, 2) else None
        return "error" if self.kinds(plan, lenient=True) or self.kinds(plan, 2, lenient=True) else "warning"


def plans(golden, names=None):
    for path in sorted((golden / "mscclpp" / "plans").glob("*.json")):
        if path.stem in names if names else not path.stem.startswith(LEFT_OUT):
            plan = json.loads(path.read_text())
            yield path.stem, repaired(plan) if path.stem.endswith("reduce_tbg") else plan


def judged(golden, number, names=None):
    """(plan, edit, what the oracle shows, verdict) of up to so many edits of a kind and plan."""
    for name, plan in plans(golden, names):
        judge = Judge(plan)
        for mutant in spread(plan, number):
            text = json.dumps(mutant.plan).encode()
            yield name, mutant, judge.severity(mutant.plan), verify_plan(parse_plan(text, "mutant.json"))


def missed(name, mutant, severity, verdict):
    """What the verifier does not say of an edit that goes wrong."""
    said = not verdict.passes or (severity == "warning" and verdict.facts.weak_exits)
    return [] if said or severity is None else [f"{name}: {mutant}: {severity}"]


def test_flags_edits_of_small_plans_that_go_wrong(golden):
    """What the verifier says of nops is exact, but where one thread waits and then requests or releases."""
    bad, whole, texts = set(), set(), []
    for name, mutant, severity, verdict in judged(golden, 1, SMALL):
        texts += missed(name, mutant, severity, verdict)
        if mutant.kind == "drop nop":
            (bad if severity else whole).add(mutant.detail)
            assert severity or verdict.passes or mutant.detail in SAME_THREAD, (name, str(mutant))
    assert not texts
    assert {"put·signal", "rres·signal", "rlxwait·put", "rlxwait·rres", "glres·signal", "wait·copy"} <= bad
    assert {"begin·rlxsignal", "rlxsignal·rlxwait", "wait·end", "wait·pwsf", "rre·copy", "get·res"} <= whole


@pytest.mark.nightly
def test_flags_edits_of_all_plans_that_go_wrong(golden):
    counts, texts = Counter(), []
    for name, mutant, severity, verdict in judged(golden, 2):
        counts.update([severity, "made"])
        texts += missed(name, mutant, severity, verdict)
    assert not texts
    assert counts["made"] > 1000
    assert counts["error"] > 600
