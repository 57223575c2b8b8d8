"""What an optimization has found, in words."""

from collections.abc import Iterator, Mapping

from astrasim_py.core.units import format_time, number_of
from astrasim_py.optimizer.judge import NEVER, status
from astrasim_py.optimizer.optimize import Optimized


def headline(result: Optimized) -> str:
    """The result in one sentence."""
    before, after = result.baseline_ps, result.makespan_ps
    left = "" if result.bound.ps is None else f"; what is left is {result.bound.of}"
    if after == result.bound.ps:
        left = f"; the bound is {result.bound.of}" if "GB/s" in result.bound.of else ""
    if after < before:
        return f"{format_time(before)} -> {status(after, result.bound)}, {share(after - before, before)}{left}"
    why = "the scenario is at its bound" if after == result.bound.ps else "no better choice is known"
    return f"nothing found: {why}; {status(after, result.bound)}{left}"


def share(more: int, of: int) -> str:
    """A difference as a signed part of something."""
    return f"{100 * more / max(of, 1):+.1f} %"


def tried(result: Optimized) -> str:
    """How much was searched."""
    combinations = "" if result.space.count is None else number_of(result.space.count, "combination")
    if result.found.whole:
        return f"all {combinations} were tried"
    of_all = f" of {combinations}" if combinations else ""
    return f"{result.evaluations:,}{of_all} were tried" if of_all else number_of(result.evaluations, "evaluation")


def changes(result: Optimized) -> Iterator[tuple[str, str, str, str]]:
    """Name, value before and after of each change, and what is lost without it."""
    space, brings = result.space, dict(result.brings)
    for number in space.changes(result.best):
        choice = space.choices[number]
        loss = "not known"
        if number in brings:
            brought = brings[number]
            loss = "does not run" if brought is None else f"+{format_time(brought)}"
        yield choice.name, choice.say(choice.values[0]), choice.say(result.best[number]), loss


def report(result: Optimized, algorithms: Mapping[str, str], notes: list[str], figure: str | None) -> str:
    """The report as Markdown. `algorithms`: what each of their files does. `notes`: further lines. `figure`: name of
    the file of the figure."""
    space, before = result.space, result.baseline_ps
    lines = [f"# {space.point.scenario}, optimized", "", f"{headline(result)}.", ""]
    lines += ["| step | makespan | against the scenario | above its bound |", "|---|---|---|---|"]
    rows = [("as in the scenario", before, result.baseline_bound)]
    if result.found.uniform and min(result.found.uniform.values()) < NEVER:
        name = min(result.found.uniform, key=result.found.uniform.__getitem__)
        rows.append((f"best algorithm for all calls: {name}", result.found.uniform[name], result.baseline_bound))
    if result.found.alone is not None and result.found.alone[1] < NEVER:
        rows.append(("best algorithm of each class of calls alone", result.found.alone[1], result.baseline_bound))
    rows.append(("optimized", result.makespan_ps, result.bound))
    for name, makespan, bound in rows:
        gap = bound.gap(makespan)
        above = "no bound applies" if gap is None else f"{100 * gap:.1f} %"
        lines.append(f"| {name} | {format_time(makespan)} | {share(makespan - before, before)} | {above} |")
    by = f": {result.bound.of}" if result.bound.of else ""
    lines += ["", f"The bound is of the workload on its placement, for all algorithms and orders{by}.", ""]
    lines += ["## Changes", ""]
    change_rows = list(changes(result))
    if change_rows:
        lines += ["| what | before | after | without this change alone |", "|---|---|---|---|"]
        lines += [f"| {' | '.join(row)} |" for row in change_rows]
    else:
        lines.append("None.")
    lines += ["", "## Algorithms", ""]
    if algorithms:
        lines += ["| file | carries out |", "|---|---|", *(f"| {name} | {use} |" for name, use in algorithms.items())]
    else:
        lines.append("None are there as files.")
    if result.found.made:
        lines += ["", "Synthesized for the best step by then:", ""]
        lines += [f"* {name}: {text}" for text, name in result.found.made.items()]
    lines += ["", "## Search", "", f"{tried(result).capitalize()}. Choices, and the ways that were listed of each:", ""]
    for choice in space.choices:
        others = "others for some of the calls" if choice.kind == "algorithms" else "exchanges"
        more = "" if choice.whole else f", and {others}"
        lines.append(f"* {choice.kind}: {choice.name}: {len(choice.values)}{more}")
    lines += ["", *(f"{note}." for note in notes)] if notes else []
    lines += ["", f"![before and after]({figure})"] if figure else []
    return "\n".join(lines) + "\n"
