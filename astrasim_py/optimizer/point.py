"""Which point of a scenario is optimized."""

from collections.abc import Mapping, Sequence

from astrasim_py.core.errors import UsageError
from astrasim_py.core.fields import did_you_mean
from astrasim_py.results.values import value_order
from astrasim_py.scenario.expand import Point, expand
from astrasim_py.scenario.load import LoadedScenario


def point_of(scenario: LoadedScenario, values_by_key: Mapping[str, Sequence[str]]) -> Point:
    """The only point of a scenario that has one of the values of each swept key. Raises UsageError: there are several,
    several runs of it, or none."""
    points = expand(scenario)
    keys = list(points[0].values)
    for name, texts in values_by_key.items():
        full = [key for key in keys if key == name] or [key for key in keys if key.rpartition(".")[2] == name]
        if len(full) != 1:
            problem = f"is swept more than once: {', '.join(full)}" if full else "is not swept"
            raise UsageError(name, problem, "write it out" if full else did_you_mean(name, keys))
        texts_of_key = list(dict.fromkeys(point.values[full[0]] for point in points))
        matches = {text for text in texts_of_key if any(_equal(text, chosen) for chosen in texts)}
        if not matches:
            raise UsageError(name, f'no point has "{texts[0]}"', f"write one of {', '.join(texts_of_key)}")
        points = tuple(point for point in points if point.values[full[0]] in matches)
    if len(points) > 1:
        swept = {key: list(dict.fromkeys(point.values[key] for point in points)) for key in keys}
        words = [f'{key}="{values[0]}"' for key, values in swept.items() if len(values) > 1]
        count = f"{len(points)} points" if len(points) > 1 and scenario.repeat == 1 else f"{len(points)} runs"
        remedy = f"add e.g. {' '.join(words)}" if scenario.repeat == 1 else "drop repeat"
        raise UsageError(str(scenario.path), f"has {count}, and one is optimized", remedy)
    return points[0]


def _equal(first: str, second: str) -> bool:
    """Whether two texts say the same value, in any unit."""
    (kind, worth, text), (own_kind, own_worth, own_text) = value_order(first), value_order(second)
    return text == own_text or (kind == own_kind and worth == own_worth and worth != 0)
