"""The pictures of the documentation, each drawn anew from what the repository holds.

``docs/figures/pictures.json`` has digests of what each was made from and shows, so that a test names those that are out
of date (tests/docs/test_docs_pictures.py). ``architecture.svg`` is written by hand, screenshots of the page are taken.
"""

import hashlib
import json
import re
import sys
from collections.abc import Callable, Iterable
from functools import partial
from pathlib import Path
from typing import NamedTuple

DOCS = Path(__file__).resolve().parent
ROOT = DOCS.parent
FIGURES = DOCS / "figures"
NOTES = FIGURES / "pictures.json"
#: Lesson → name of its figure; of all others the first.
CHOSEN = {"synthesized": "slowdown", "synthesized_training": "breakdown"}
#: Lessons that have no picture.
_WITHOUT = {"synthesized_training_256"}
#: Pictures that take more than about a second: nightly tests draw them anew.
DEAR = {
    "lessons/all_to_all_torus",
    "lessons/comet_break_even",
    "lessons/comet_clusters",
    "lessons/comet_transformer_1t",
    "lessons/fair_or_fifo",
    "lessons/in_network",
    "lessons/memory_or_network",
    "lessons/open_loop",
    "lessons/real_machines",
    "lessons/ring_vs_torus",
    "lessons/step_at_scale",
    "lessons/synthesized",
    "lessons/synthesized_training",
    "measured_h100",
}


class Drawing(NamedTuple):
    """A picture as SVG, and what it shows as CSV."""

    svg: bytes
    data: bytes


class Source(NamedTuple):
    """What a picture is drawn from. `draw`: makes it, with a folder for results."""

    files: list[Path]
    draw: Callable[[Path], Drawing]


def sources() -> dict[str, Source]:
    """Name of each picture, below docs/figures and without its ending → its source."""
    scenarios = sorted((ROOT / "scenarios").glob("*.yaml"))
    made = {
        f"lessons/{path.stem}": Source([path, *_read_by(path)], partial(_of_scenario, path))
        for path in scenarios
        if path.stem not in _WITHOUT
    }
    for name in ("cost", "synthesis_cost"):
        path = FIGURES / f"{name}.csv"
        made[name] = Source([path], partial(_of_costs, path))
    times = ROOT / "astrasim_py" / "data" / "validation" / "measured.csv"
    profile = ROOT / "astrasim_py" / "data" / "hardware" / "dgx_h100.json"
    return {**made, "measured_h100": Source([times, profile], partial(_of_measured, times))}


def digest(files: Iterable[Path]) -> str:
    """Of the content of files."""
    parts = (hashlib.sha256(path.read_bytes()).digest() for path in files)
    return hashlib.sha256(b"".join(parts)).hexdigest()[:16]


def note(source: Source, drawing: Drawing) -> dict[str, str]:
    """What is kept beside a picture."""
    hashed = {name: hashlib.sha256(content).hexdigest()[:16] for name, content in drawing._asdict().items()}
    return {"inputs": digest(source.files), **hashed, "matplotlib": _version()}


def notes() -> dict[str, dict[str, str]]:
    return json.loads(NOTES.read_text("utf-8")) if NOTES.exists() else {}


def refresh(names: Iterable[str]) -> None:
    """Draw pictures anew, all by default, and write them with their notes."""
    known, kept = sources(), notes()
    for name in names or known:
        if name not in known:
            sys.exit(f"{name} is no picture; write one of {', '.join(known)}")
        drawing = known[name].draw(ROOT / "build" / "pictures")
        path = FIGURES / f"{name}.svg"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(drawing.svg)
        kept[name] = note(known[name], drawing)
        print(f"{path.relative_to(ROOT)}: {len(drawing.svg) / 1000:.0f} KB")
        NOTES.write_text(json.dumps({key: kept[key] for key in sorted(kept) if key in known}, indent=1) + "\n", "utf-8")


def _version() -> str:
    import matplotlib

    return matplotlib.__version__


def _read_by(scenario: Path) -> list[Path]:
    """Files, also those in folders, that a scenario names."""
    words = re.findall(r"\w[\w./-]*", scenario.read_text("utf-8"))
    named = [scenario.parent / word for word in dict.fromkeys(words) if re.search(r"/|\.\w", word)]
    # kineto_{rank}.json stands for all files of its folder.
    named += [path.parent for path in named if not path.exists() and path.parent not in scenario.parents]
    files = [path for path in named if path.is_file()]
    files += [file for path in named if path.is_dir() for file in path.rglob("*") if file.is_file()]
    return sorted(set(files))


def _of_scenario(path: Path, folder: Path) -> Drawing:
    """One figure of a scenario, which is run as far as the results in the folder do not have it."""
    from astrasim_py.runs.figures import figure_names
    from astrasim_py.runs.sweep import run_scenario
    from astrasim_py.scenario.load import load_scenario

    specs = [spec.model_dump(exclude_none=True, mode="json") for spec in load_scenario(path).plots]
    names = figure_names(specs)
    number = names.index(CHOSEN[path.stem]) if path.stem in CHOSEN else 0
    spec = json.dumps({**specs[number], "name": names[number], "format": ["svg"]})
    scenario = load_scenario(path, [f"plots=[{spec}]", "engine=compiled"])
    run_scenario(scenario, out=folder)
    files = [folder / scenario.name / "figures" / f"{names[number]}.{form}" for form in ("svg", "csv")]
    return Drawing(*(file.read_bytes() for file in files))


def _of_measured(times: Path, folder: Path) -> Drawing:
    """Measured and simulated bus bandwidth of H100s."""
    from astrasim_py.measured.rows import chooser, read_rows
    from astrasim_py.validation.measured import compare, figures

    rows = [row for row in read_rows([str(times)], []) if chooser("platform=H100-SXM")(row) and row.dtype == "half"]
    drawings = figures(compare(rows, None, "compiled", None))
    (svg,) = (content for name, content in drawings.items() if name.endswith(".svg"))
    return Drawing(svg, times.read_bytes())


def _of_costs(path: Path, folder: Path) -> Drawing:
    sys.path.insert(0, str(ROOT / "benchmarks"))
    try:
        import cost_plots
    finally:
        sys.path.pop(0)
    return Drawing(cost_plots.drawn(path), path.read_bytes())
