"""Two explained runs side by side: where their times differ."""

from collections import Counter
from collections.abc import Mapping
from dataclasses import dataclass
from html import escape

from astrasim_py.core.units import format_time
from astrasim_py.report.explain import Explanation, and_alike
from astrasim_py.report.tables import text_table

#: Rows of each table.
_ROWS = 8


@dataclass(frozen=True, slots=True)
class Difference:
    """Two runs, each with a name."""

    names: tuple[str, str]
    runs: tuple[Explanation, Explanation]

    def __str__(self) -> str:
        return difference_text(self)

    def _repr_html_(self) -> str:
        return f"<pre>{escape(difference_text(self))}</pre>"


def difference_text(d: Difference) -> str:
    """What differs: the time, by category of the critical path, by collective, by link."""
    a, b = d.runs
    blocks = [
        "\n".join(
            f"{label}: {name}: {format_time(run.makespan)}"
            for label, name, run in zip("AB", d.names, d.runs, strict=True)
        )
    ]
    blocks.append(_summary(a, b))
    parts = [("on the critical path", _spent(a), _spent(b)), ("communication: exposed", _exposed(a), _exposed(b))]
    blocks += [text for heading, of_a, of_b in parts if (text := _table(heading, of_a, of_b))]
    links = [
        f"{label} {use['name']}{and_alike(use['alike'])}, busy {format_time(use['busy'])}"
        for label, run in zip("AB", d.runs, strict=True)
        for use in run.links[:1]
    ]
    if links:
        blocks.append(f"busiest link: {'; '.join(links)}")
    return "\n\n".join(blocks)


def _spent(run: Explanation) -> Mapping[str, int]:
    return {category: ps for category, ps in run.totals.items() if ps}


def _exposed(run: Explanation) -> Mapping[str, int]:
    """Exposed time of the collectives; the second of one name is ``NAME #2``."""
    counts: Counter[str] = Counter()
    exposed = {}
    for call in sorted(run.exposures, key=lambda call: call.instance):
        counts[call.name] += 1
        exposed[f"{call.name} #{counts[call.name]}" if counts[call.name] > 1 else call.name] = call.exposed
    return exposed


def _summary(a: Explanation, b: Explanation) -> str:
    if a.makespan == b.makespan:
        return "both take the same time"
    slow, fast, label = (b, a, "B") if b.makespan > a.makespan else (a, b, "A")
    gap = slow.makespan - fast.makespan
    gains = {name: slow.totals[name] - fast.totals[name] for name in slow.totals}
    category = max(gains, key=lambda name: gains[name])
    text = f"{label} takes {format_time(gap)} longer"
    if fast.makespan:
        text += f", {slow.makespan / fast.makespan:.2f} times as long"
    text += f": {format_time(gains[category])} more of its critical path is {category}"
    before = dict(fast.waits(category))
    links = {name: ps - before.get(name, 0) for name, ps in slow.waits(category)}
    link = max(links, key=lambda name: links[name], default="")
    if link and 0 < links[link] <= gains[category]:
        text += f", {format_time(links[link])} of it on {link}"
    less = min(gains, key=lambda name: gains[name])
    return text + (f"; {format_time(-gains[less])} less is {less}" if gains[less] < 0 else "")


def _table(heading: str, a: Mapping[str, int], b: Mapping[str, int]) -> str:
    names = [name for name in dict.fromkeys((*a, *b)) if a.get(name) != b.get(name)]
    names.sort(key=lambda name: -abs(b.get(name, 0) - a.get(name, 0)))
    if not names:
        return ""
    rows = [
        [
            name,
            *(format_time(times[name]) if name in times else "–" for times in (a, b)),
            _signed(b.get(name, 0) - a.get(name, 0)),
        ]
        for name in names[:_ROWS]
    ]
    rest = f"\n… and {len(names) - _ROWS} more" if len(names) > _ROWS else ""
    return text_table([heading, "A", "B", "B - A"], rows, [False, True, True, True]) + rest


def _signed(ps: int) -> str:
    return f"{'-' if ps < 0 else '+'}{format_time(abs(ps))}"
