"""Rules that a layout keeps; who breaks one gets its line. All work on numbers and on arrays of configurations."""

from collections.abc import Callable
from typing import Any, NamedTuple

import numpy as np


class Rule(NamedTuple):
    """A rule: who breaks it, element by element; and, for plain numbers, what is wrong and what to write instead."""

    name: str
    broken: Callable[[Any], Any]
    problem: Callable[[Any], str]
    remedy: Callable[[Any], str]


def first_broken(layout: Any) -> np.ndarray:
    """Place in `RULES` of the first rule that each configuration breaks, int64, or -1."""
    found = np.int64(-1)
    for place in reversed(range(len(RULES))):
        found = np.where(RULES[place].broken(layout), place, found)
    return found


def _apart(a: Any, b: Any) -> Any:
    """Whether neither number divides the other."""
    return (a % b != 0) & (b % a != 0)


def _fixed(o: Any) -> Any:
    return o.tp * o.cp * o.pp


def _ranks_problem(o: Any) -> str:
    if o.ranks % _fixed(o):
        return f"{o.ranks} ranks are not a multiple of tp {o.tp} x cp {o.cp} x pp {o.pp} = {_fixed(o)}"
    return f"tp {o.tp} x cp {o.cp} x pp {o.pp} x dp {o.dp} = {_fixed(o) * o.dp} are not the {o.ranks} ranks"


RULES = (
    Rule(
        "heads",
        lambda o: o.model.heads % o.tp != 0,
        lambda o: f"tp {o.tp} does not divide {o.model.heads} heads",
        lambda o: f"write a tp that divides {o.model.heads}",
    ),
    Rule(
        "kv_heads",
        lambda o: _apart(o.model.kv_heads, o.tp) & (not o.model.mla),
        lambda o: f"of tp {o.tp} and {o.model.kv_heads} KV heads neither divides the other",
        lambda o: f"write a tp that divides {o.model.kv_heads}, or a multiple of it",
    ),
    Rule(
        "sequence",
        lambda o: (o.cp > 1) & (o.seq % (2 * o.cp) != 0),
        lambda o: f"2 x cp {o.cp} does not divide seq {o.seq}",
        lambda o: f"write a seq that is a multiple of {2 * o.cp}, or a smaller cp",
    ),
    Rule(
        "no experts",
        lambda o: ((o.ep > 1) | (o.etp > 1)) & (o.model.experts == 0),
        lambda o: f"ep {o.ep}, etp {o.etp} for a model without experts",
        lambda o: "drop ep and etp, or name a model with experts",
    ),
    Rule(
        "experts",
        lambda o: o.model.experts % o.ep != 0,
        lambda o: f"ep {o.ep} does not divide {o.model.experts} experts",
        lambda o: f"write an ep that divides {o.model.experts}",
    ),
    Rule(
        "ranks",
        lambda o: o.ranks != _fixed(o) * o.dp,
        _ranks_problem,
        lambda o: f"take {_fixed(o) * max(round(o.ranks / _fixed(o)), 1)} ranks, dp: fill, or another tp, cp or pp",
    ),
    Rule(
        "expert ranks",
        lambda o: o.stage_ranks % (o.ep * o.etp) != 0,
        lambda o: f"ep {o.ep} x etp {o.etp} does not divide the {o.stage_ranks} ranks of a stage (tp x cp x dp)",
        lambda o: "write a smaller ep, or fewer stages",
    ),
    Rule(
        "batch",
        lambda o: o.gbs != o.dp * o.mbs * o.microbatches,
        lambda o: f"gbs {o.gbs} is not dp {o.dp} x mbs {o.mbs} x {o.microbatches} microbatches",
        lambda o: f"write a gbs that is a multiple of {o.dp * o.mbs}, or another dp or mbs",
    ),
    Rule(
        "layers",
        # The embedding and the loss may be stages of their own.
        lambda o: (o.pp * o.vp > o.model.layers) & ((o.pp == 1) | (o.pp * o.vp != o.model.layers + 2)),
        lambda o: f"pp {o.pp} x vp {o.vp} are more stages than {o.model.layers} layers",
        lambda o: "write a smaller pp or vp",
    ),
    Rule(
        "chunks",
        lambda o: (o.vp > 1) & ((o.pp == 1) | (o.schedule not in ("interleaved", "zbv"))),
        lambda o: f"vp {o.vp} with pp {o.pp} and schedule {o.schedule}",
        lambda o: (
            "write pp of 2 or more, or schedule: 1f1b and no vp"
            if o.schedule in ("interleaved", "zbv")
            else "write schedule: interleaved and pp of 2 or more, or drop vp"
        ),
    ),
    Rule(
        "interleaved",
        lambda o: (o.schedule == "interleaved") & (o.microbatches % o.pp != 0),
        lambda o: f"interleaved with {o.microbatches} microbatches, not a multiple of pp {o.pp}",
        lambda o: f"write a gbs that is a multiple of {o.dp * o.mbs * o.pp}, or schedule: 1f1b and no vp",
    ),
    Rule(
        "zbv",
        lambda o: (o.schedule == "zbv") & (o.vp != 2),
        lambda o: f"zbv with vp {o.vp}: its V has two chunks per rank",
        lambda o: "write vp: 2",
    ),
    Rule(
        "sequence parallel",
        lambda o: (o.tp > 1) & np.asarray(o.sp) & (o.tokens % o.tp != 0),
        lambda o: f"sequence parallel: tp {o.tp} does not divide {o.tokens} tokens of a microbatch",
        lambda o: "write another seq or mbs, or sp: false",
    ),
    Rule(
        "zero group",
        lambda o: (o.dp * o.cp) % o.zero_group != 0,
        lambda o: f"zero_group {o.zero_group} does not divide dp x cp = {o.dp * o.cp}",
        lambda o: f"write a zero_group that divides {o.dp * o.cp}, or drop it",
    ),
)
