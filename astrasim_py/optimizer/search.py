"""The search: known starts, then one choice after the other, then synthesized algorithms, then all or seeded moves."""

from dataclasses import dataclass, field
from random import Random

from astrasim_py.engine.simulation import plan_for
from astrasim_py.optimizer.calls import AlgorithmChoice, Cases
from astrasim_py.optimizer.judge import NEVER, Judge, Stop
from astrasim_py.optimizer.space import Candidate, Space
from astrasim_py.optimizer.synthesized import MOST_CLASSES, TracedStep, synthesized

#: Most candidates that are all tried.
MOST_TRIED = 2048
#: Times that calls take alone, as multiples of the shortest, beyond which only moves try an algorithm.
_PROMISING = 2
#: An algorithm is costly to simulate, and tried once, if another takes at most `_ALIKE` times as long and sends less
#: than 1 / `_COSTLY` of the messages.
_COSTLY, _ALIKE = 4, 1.05
#: A move is compared with the candidate `_LATE` moves before (late acceptance hill climbing, Burke and Bykov 2017).
_LATE = 24
#: Moves without a better candidate after which the search returns to the best one, and moves to known candidates after
#: which it ends.
_PATIENCE, _NOTHING_NEW = 240, 4000
#: How often algorithms are synthesized for each class of calls, at most.
_SYNTHESES = 3


@dataclass
class SearchNotes:
    """What a search found beside the best candidate, which the judge has.

    `uniform`: makespan by each algorithm for all calls that have it, ps. `alone`: the candidate of the algorithms that
    are best one by one, and its makespan. `made`: what was synthesized, or why nothing was, and for which calls.
    `whole`: whether all candidates were tried.
    """

    uniform: dict[str, int] = field(default_factory=dict)
    alone: tuple[Candidate, int] | None = None
    made: dict[str, str] = field(default_factory=dict)
    whole: bool = False
    interrupted: bool = False


def search(judge: Judge, seed: int) -> SearchNotes:
    """Search until the judge stops it, nothing is left, or Ctrl-C. Raises AstraError: the baseline cannot run.

    The space of the judge gets the algorithms that are synthesized on the way.
    """
    notes, space = SearchNotes(), judge.space
    judge(space.baseline)
    try:
        promising, costly = _starts(space, judge, notes)
        candidate = _descend(space, judge, _start(space, judge, promising), promising)
        _descend(space, judge, judge.best, costly)
        space, candidate = _synthesize(judge, seed, candidate, promising, notes)
        if space.count is not None and space.count <= MOST_TRIED:
            for candidate in space.listed():
                judge(candidate, judge.makespan)
            notes.whole = True
        else:
            _climb(space, judge, candidate, promising, Random(seed))
    except Stop:
        pass
    except KeyboardInterrupt:
        notes.interrupted = True
    return notes


def _starts(space: Space, judge: Judge, notes: SearchNotes) -> tuple[list[tuple], list[tuple]]:
    """Judge uniform choices, and the best ones one by one; returns the promising values of each choice, best first, and
    those of them that are costly to simulate."""
    promising = [choice.values for choice in space.choices]
    costly: list[tuple] = [()] * len(promising)
    algorithms = [(n, c) for n, c in enumerate(space.choices) if isinstance(c, AlgorithmChoice)]
    best = space.baseline
    for number, choice in algorithms:
        times: dict[Cases, int] = {}
        messages: dict[Cases, int] = {}
        for value in choice.values:
            most = _PROMISING * min(times.values(), default=NEVER)
            times[value], messages[value] = judge.alone(choice, number, value, most)
        fastest = min(times.values())
        near_best = [v for v in times if times[v] <= min(_PROMISING * fastest, NEVER - 1)]
        near_best.sort(key=times.__getitem__)
        costly[number] = tuple(
            value
            for value in near_best
            if any(times[o] <= _ALIKE * times[value] and _COSTLY * messages[o] < messages[value] for o in near_best)
        )
        promising[number] = tuple(value for value in near_best if value not in costly[number])
        if fastest < times[choice.values[0]]:
            best = space.with_value(best, number, near_best[0])
    if algorithms:
        notes.alone = best, judge(best)
    for value in dict.fromkeys(value for _, choice in algorithms for value in choice.plain):
        candidate = space.baseline
        for number, choice in algorithms:
            candidate = space.with_value(candidate, number, value) if value in choice.values else candidate
        label = next(choice.say(value) for _, choice in algorithms if value in choice.values)
        notes.uniform[label] = judge(candidate, min(notes.uniform.values(), default=NEVER))
    return promising, costly


def _start(space: Space, judge: Judge, promising: list[tuple]) -> Candidate:
    """Where the search begins: the best one known, with algorithms that are not costly to simulate."""
    candidate = judge.best
    for number, choice in enumerate(space.choices):
        if isinstance(choice, AlgorithmChoice) and candidate[number] not in promising[number] and promising[number]:
            candidate = space.with_value(candidate, number, promising[number][0])
    return candidate


def _synthesize(
    judge: Judge, seed: int, candidate: Candidate, promising: list[tuple], notes: SearchNotes
) -> tuple[Space, Candidate]:
    """Add algorithms that are synthesized for one class of calls after the other, as each is in the best step by then;
    again while that brings something. Then descend."""
    space, step = judge.space, None
    for _ in range(_SYNTHESES):
        before = judge.makespan
        algorithms = [(n, c) for n, c in enumerate(space.choices) if isinstance(c, AlgorithmChoice)]
        for number, choice in algorithms[:MOST_CLASSES]:
            if choice.kind != "algorithms" or judge.at_bound:
                continue
            if step is None or step.of != judge.best:
                step = TracedStep.of_plan(judge.best, plan_for(space.problem(judge.best)), space.job_names)
            for result in synthesized(choice.calls, step, seed, judge.spend):
                if result.value and result.value in promising[number]:
                    continue
                notes.made |= {result.text: result.name}
                if result.value:
                    judge.space = space = space.wider(number, result.value, result.algorithms)
                    promising[number] = (*promising[number], result.value)
                    judge(space.with_value(judge.best, number, result.value), judge.makespan)
        if judge.makespan == before:
            break
    if notes.made:
        candidate = _descend(space, judge, _start(space, judge, promising), promising)
    return space, candidate


def _descend(space: Space, judge: Judge, candidate: Candidate, values: list[tuple]) -> Candidate:
    """Take the best of the values of one choice after the other until none is better."""
    best = judge(candidate)
    order = sorted(range(len(space.choices)), key=lambda number: len(values[number]))
    changed = True
    while changed:
        changed = False
        for number in order:
            for value in values[number]:
                other = space.with_value(candidate, number, value)
                if (makespan := judge(other, best)) < best:
                    candidate, best, changed = other, makespan, True
    return candidate


def _climb(space: Space, judge: Judge, best: Candidate, promising: list[tuple], random: Random) -> None:
    """Move at random, and accept what is not worse than some moves before."""
    least = now = judge(best)
    current = best
    late, idle, stale = [now] * _LATE, 0, 0
    step = 0
    while stale < _NOTHING_NEW:
        candidate = current
        for _ in range(1 + (random.random() < 0.3)):
            number = random.randrange(len(space.choices))
            value = space.choices[number].move(candidate[number], random, promising[number])
            candidate = space.with_value(candidate, number, value)
        before = judge.counted
        makespan = judge(candidate, max(now, late[step % _LATE]))
        stale = 0 if judge.counted > before else stale + 1
        if makespan < NEVER:
            current, now = candidate, makespan
        late[step % _LATE] = now
        step += 1
        idle += 1
        if now < least:
            best, least, idle = current, now, 0
        if idle >= _PATIENCE:
            current, now, idle = best, least, 0
            late = [now] * _LATE
