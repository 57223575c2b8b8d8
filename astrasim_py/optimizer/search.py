"""The search: known starts, then one choice after the other, then synthesized algorithms, then all or seeded moves."""

from dataclasses import dataclass, field
from random import Random

from astrasim_py.engine.simulation import plan_for
from astrasim_py.optimizer.calls import AlgorithmChoice
from astrasim_py.optimizer.judge import NEVER, Judge, Stop
from astrasim_py.optimizer.space import Candidate, Space
from astrasim_py.optimizer.synthesized import MOST_CLASSES, Step, synthesized

#: Most candidates that are all tried.
MOST_TRIED = 2048
#: Moves are compared with the candidate of so many moves before (late acceptance hill climbing, Burke and Bykov 2017);
#: from the best one again after so many without a better one; and given up after so many that find nothing new.
_LATE, _PATIENCE, _NOTHING_NEW = 24, 240, 4000
#: How often algorithms are synthesized for each class of calls, at most.
_SYNTHESES = 3


@dataclass
class Found:
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


def search(judge: Judge, seed: int) -> Found:
    """Search until the judge stops it, nothing is left, or Ctrl-C. Raises AstraError: the baseline cannot run.

    The space of the judge gets the algorithms that are synthesized on the way.
    """
    found, space = Found(), judge.space
    judge(space.baseline)
    try:
        order = _starts(space, judge, found)
        for start in _distinct_starts(space, judge, found):
            _descend(space, judge, start, order)
        space = _synthesize(judge, seed, order, found)
        if space.count is not None and space.count <= MOST_TRIED:
            for candidate in space.listed():
                judge(candidate)
            found.whole = True
        else:
            _climb(space, judge, Random(seed))
    except Stop:
        pass
    except KeyboardInterrupt:
        found.interrupted = True
    return found


def _starts(space: Space, judge: Judge, found: Found) -> dict[int, list]:
    """Judge uniform choices, and the best ones one by one; returns the values of each choice, promising ones first."""
    order = {number: list(choice.values) for number, choice in enumerate(space.choices)}
    algorithms = [(n, c) for n, c in enumerate(space.choices) if isinstance(c, AlgorithmChoice)]
    best = space.baseline
    for number, choice in algorithms:
        times = {value: judge.alone(choice, number, value) for value in choice.values}
        order[number].sort(key=times.__getitem__)
        if times[order[number][0]] < times[choice.values[0]]:
            best = space.with_value(best, number, order[number][0])
    if algorithms:
        found.alone = best, judge(best)
    for value in dict.fromkeys(value for _, choice in algorithms for value in choice.plain):
        candidate = space.baseline
        for number, choice in algorithms:
            candidate = space.with_value(candidate, number, value) if value in choice.values else candidate
        label = next(choice.say(value) for _, choice in algorithms if value in choice.values)
        found.uniform[label] = judge(candidate)
    return order


def _distinct_starts(space: Space, judge: Judge, found: Found) -> list[Candidate]:
    """Where descents begin: the best start, the best choices one by one, the baseline."""
    listed = [judge.best, *([found.alone[0]] if found.alone else []), space.baseline]
    return list(dict.fromkeys(each for each in listed if each is not None))


def _synthesize(judge: Judge, seed: int, order: dict[int, list], found: Found) -> Space:
    """Add algorithms that are synthesized for one class of calls after the other, as each is in the best step by then;
    again while that brings something. Then descend."""
    space, step = judge.space, None
    for _ in range(_SYNTHESES):
        before = judge.makespan
        for number in [n for n, c in enumerate(space.choices) if isinstance(c, AlgorithmChoice)][:MOST_CLASSES]:
            choice = space.choices[number]
            if choice.kind != "algorithms" or judge.at_bound:
                continue
            if step is None or step.of != judge.best:
                step = Step.of_plan(judge.best, plan_for(space.problem(judge.best)), space.job_names)
            for made in synthesized(choice.calls, step, seed, judge.spend):
                found.made |= {made.text: made.name}
                if made.value is not None and made.value not in order[number]:
                    judge.space = space = space.wider(number, made.value, made.algorithms)
                    order[number].append(made.value)
                    judge(space.with_value(judge.best, number, made.value))
        if judge.makespan == before:
            break
    if found.made:
        _descend(space, judge, judge.best, order)
    return space


def _descend(space: Space, judge: Judge, candidate: Candidate, order: dict[int, list]) -> Candidate:
    """Take the best value of one choice after the other until none is better."""
    now = judge(candidate)
    changed = True
    while changed:
        changed = False
        for number in range(len(space.choices)):
            for value in order[number]:
                other = space.with_value(candidate, number, value)
                if (made := judge(other)) < now:
                    candidate, now, changed = other, made, True
    return candidate


def _climb(space: Space, judge: Judge, random: Random) -> None:
    """Move at random, and accept what is not worse than some moves before."""
    current, now = judge.best, judge.makespan
    late, idle, stale = [now] * _LATE, 0, 0
    step = 0
    while stale < _NOTHING_NEW:
        candidate = current
        for _ in range(1 + (random.random() < 0.3)):
            number = random.randrange(len(space.choices))
            candidate = space.with_value(candidate, number, space.choices[number].move(candidate[number], random))
        before, best = judge.counted, judge.makespan
        made = judge(candidate)
        stale = 0 if judge.counted > before else stale + 1
        if made <= now or (made <= late[step % _LATE] and made < NEVER):
            current, now = candidate, made
        late[step % _LATE] = now
        step += 1
        idle = 0 if judge.makespan < best else idle + 1
        if idle >= _PATIENCE:
            current, now, idle = judge.best, judge.makespan, 0
            late = [now] * _LATE
