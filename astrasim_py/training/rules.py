"""Rules of a layout; breaking one gives its line as an error. All work on numbers and on arrays of configurations.

The remedy of a line has been tried: with it all rules are kept.
"""

import math
from collections.abc import Callable, Iterable, Iterator, Mapping
from itertools import chain
from typing import Any, NamedTuple

import numpy as np

#: The layout with other keys of a training, or on other `ranks`; None: they cannot be written.
After = Callable[[Mapping[str, Any]], Any]


class Rule(NamedTuple):
    """A rule: which elements break it; for plain numbers, the problem and possible remedies, best first."""

    name: str
    broken: Callable[[Any], Any]
    problem: Callable[[Any], str]
    attempts: Callable[[Any], Iterable[Mapping[str, Any]]]

    def remedy(self, layout: Any, after: After) -> str:
        """What to write instead; `after` gives the layout with other keys."""
        tried = list(self.attempts(layout))
        first = remedy(tried, after) or remedy([{**keys, "dp": "fill"} for keys in tried], after)
        remedies = (keys for keys in tried if (found := after(keys)) is not None and not self.broken(found))
        return first or text(next(remedies, {})) or "write another layout"


def first_broken(layout: Any) -> np.ndarray:
    """Place in `RULES` of the first rule that each configuration breaks, int64, or -1."""
    places = np.asarray(-1)
    for place in reversed(range(len(RULES))):
        places = np.where(RULES[place].broken(layout), place, places)
    return places


def _apart(a: Any, b: Any) -> Any:
    """Whether neither number divides the other."""
    return (a % b != 0) & (b % a != 0)


def _fixed(o: Any) -> Any:
    return o.tp * o.cp * o.pp


def remedy(
    attempts: Iterable[Mapping[str, Any]], after: After, possible: Callable[[Any], bool] = lambda o: True
) -> str:
    """The first two attempts, of different keys, with which a layout keeps all rules and is `possible`, as text."""
    attempts_by_keys: dict[tuple, Mapping[str, Any]] = {}
    for keys in attempts:
        if any(tuple(keys)[: len(known)] == known for known in attempts_by_keys):
            continue
        changed = after(keys)
        if changed is not None and not any(rule.broken(changed) for rule in RULES) and possible(changed):
            attempts_by_keys[tuple(keys)] = keys
        if len(attempts_by_keys) == 2:
            break
    answer = ", or ".join(map(text, attempts_by_keys.values()))
    return answer.replace(", or write ", ", or ") if answer.startswith("write") else answer


def text(keys: Mapping[str, Any]) -> str:
    """Keys and values as a line says them."""
    rest = [f"{key}: {str(value).lower()}" for key, value in keys.items() if key != "ranks"]
    taken = [f"take {keys['ranks']} ranks"] if "ranks" in keys else []
    return " and ".join(taken + (["write " + " and ".join(rest)] if rest else []))


def divisors(number: int, near: int) -> list[int]:
    """Divisors of a number, the nearest to another one first."""
    small = [divisor for divisor in range(1, math.isqrt(number) + 1) if number % divisor == 0]
    return sorted({*small, *(number // divisor for divisor in small)}, key=lambda one: (abs(one - near), one))


def _multiples(of: int, near: int) -> list[int]:
    """Multiples of a number near another one, the nearest first."""
    first = near // of
    return sorted((of * k for k in range(max(first - 8, 1), first + 10)), key=lambda one: (abs(one - near), one))


def _each(key: str, values: Iterable[Any]) -> Iterator[dict[str, Any]]:
    return ({key: value} for value in values)


def _tp(o: Any) -> Iterator[dict[str, Any]]:
    return _each("tp", (t for t in divisors(o.model.heads, o.tp) if o.model.mla or not _apart(o.model.kv_heads, t)))


def _seq(o: Any) -> Iterator[dict[str, Any]]:
    return _each("seq", _multiples(math.lcm(2 * o.cp, o.cp * o.tp), o.seq))


def _experts(o: Any) -> Iterator[dict[str, Any]]:
    fewer = divisors(o.model.experts, o.ep)
    return chain(_each("ep", fewer), _each("etp", divisors(o.etp, o.etp)), ({"ep": x, "etp": 1} for x in fewer))


def _stages(o: Any) -> Iterator[dict[str, Any]]:
    fewer = range(o.pp - 1, 0, -1)
    both = ({"pp": p, "vp": 1, "schedule": "1f1b"} for p in fewer)
    return chain(_each("vp", range(o.vp - 1, 0, -1)), _each("pp", fewer), both)


_PLAIN = {"schedule": "1f1b", "vp": 1}


def _ranks_problem(o: Any) -> str:
    if o.ranks % _fixed(o):
        return f"{o.ranks} ranks are not a multiple of tp {o.tp} x cp {o.cp} x pp {o.pp} = {_fixed(o)}"
    return f"tp {o.tp} x cp {o.cp} x pp {o.pp} x dp {o.dp} = {_fixed(o) * o.dp} are not the {o.ranks} ranks"


RULES = (
    Rule(
        "heads",
        lambda o: o.model.heads % o.tp != 0,
        lambda o: f"tp {o.tp} does not divide {o.model.heads} heads",
        _tp,
    ),
    Rule(
        "kv_heads",
        lambda o: _apart(o.model.kv_heads, o.tp) & (not o.model.mla),
        lambda o: f"of tp {o.tp} and {o.model.kv_heads} KV heads neither divides the other",
        _tp,
    ),
    Rule(
        "sequence",
        lambda o: (o.cp > 1) & (o.seq % (2 * o.cp) != 0),
        lambda o: f"2 x cp {o.cp} does not divide seq {o.seq}",
        lambda o: chain(_seq(o), _each("cp", range(o.cp - 1, 0, -1))),
    ),
    Rule(
        "no experts",
        lambda o: ((o.ep > 1) | (o.etp > 1)) & (o.model.experts == 0),
        lambda o: f"ep {o.ep}, etp {o.etp} for a model without experts",
        lambda o: [{"ep": 1, "etp": 1}],
    ),
    Rule(
        "experts",
        lambda o: o.model.experts % o.ep != 0,
        lambda o: f"ep {o.ep} does not divide {o.model.experts} experts",
        _experts,
    ),
    Rule(
        "ranks",
        lambda o: o.ranks != _fixed(o) * o.dp,
        _ranks_problem,
        lambda o: chain(
            [{"dp": "fill"}] if o.ranks % _fixed(o) == 0 else [],
            _each("ranks", [_fixed(o) * o.dp, *_multiples(_fixed(o), o.ranks)]),
            _tp(o),
            _each("pp", range(o.pp - 1, 0, -1)),
        ),
    ),
    Rule(
        "expert ranks",
        lambda o: o.stage_ranks % (o.ep * o.etp) != 0,
        lambda o: f"ep {o.ep} x etp {o.etp} does not divide the {o.stage_ranks} ranks of a stage (tp x cp x dp)",
        _experts,
    ),
    Rule(
        "batch",
        lambda o: o.gbs != o.dp * o.mbs * o.microbatches,
        lambda o: f"gbs {o.gbs} is not dp {o.dp} x mbs {o.mbs} x {o.microbatches} microbatches",
        lambda o: chain(
            _each("gbs", [o.dp * o.mbs * o.microbatches, *_multiples(o.dp * o.mbs, o.gbs)]),
            _each("microbatches", [max(o.gbs // (o.dp * o.mbs), 1)]),
            _each("mbs", divisors(max(o.gbs // o.dp, 1), o.mbs)),
        ),
    ),
    Rule(
        "layers",
        # The embedding and the loss may be stages of their own.
        lambda o: (o.pp * o.vp > o.model.layers) & ((o.pp == 1) | (o.pp * o.vp != o.model.layers + 2)),
        lambda o: f"pp {o.pp} x vp {o.vp} are more stages than {o.model.layers} layers",
        _stages,
    ),
    Rule(
        "chunks",
        lambda o: (o.vp > 1) & ((o.pp == 1) | (o.schedule not in ("interleaved", "zbv"))),
        lambda o: f"vp {o.vp} with pp {o.pp} and schedule {o.schedule}",
        lambda o: chain(
            _each("schedule", ["interleaved"] if o.pp > 1 else []),
            [_PLAIN],
            _each("pp", divisors(max(o.ranks // (o.tp * o.cp), 1), 2)),
        ),
    ),
    Rule(
        "interleaved",
        lambda o: (o.schedule == "interleaved") & (o.microbatches % o.pp != 0),
        lambda o: f"interleaved with {o.microbatches} microbatches, not a multiple of pp {o.pp}",
        lambda o: chain(_each("gbs", _multiples(o.dp * o.mbs * o.pp, o.gbs)), [_PLAIN]),
    ),
    Rule(
        "zbv",
        lambda o: (o.schedule == "zbv") & (o.vp != 2),
        lambda o: f"zbv with vp {o.vp}: its V has two chunks per rank",
        lambda o: [{"vp": 2}, _PLAIN],
    ),
    Rule(
        "sequence parallel",
        lambda o: (o.tp > 1) & np.asarray(o.sp) & (o.tokens % o.tp != 0),
        lambda o: f"sequence parallel: tp {o.tp} does not divide {o.tokens} tokens of a microbatch",
        lambda o: chain(_seq(o), [{"sp": False}], _each("mbs", divisors(o.gbs, o.mbs))),
    ),
    Rule(
        "zero group",
        lambda o: (o.dp * o.cp) % o.zero_group != 0,
        lambda o: f"zero_group {o.zero_group} does not divide dp x cp = {o.dp * o.cp}",
        lambda o: _each("zero_group", divisors(o.dp * o.cp, o.zero_group)),
    ),
)
