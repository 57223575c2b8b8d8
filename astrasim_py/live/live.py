"""A stored point with changes: what the page offers to change, the scenario that it makes, and its run."""

import os
from collections.abc import Mapping, Sequence
from copy import deepcopy
from pathlib import Path
from typing import Any, NamedTuple

import yaml

from astrasim_py.builders.registry import ALGORITHMS, IN_NETWORK, default_algorithm
from astrasim_py.core.choices import LIBRARIES
from astrasim_py.core.document import parse_document
from astrasim_py.core.errors import AstraError, UsageError
from astrasim_py.engine.simulation import plan_for, predicted_hops, simulate
from astrasim_py.inspection.stored_results import point_of
from astrasim_py.inspection.view import message_chunks
from astrasim_py.preparation.prepare import prepare
from astrasim_py.report.page import packed, page_data
from astrasim_py.results.stored_points import StoredPoint
from astrasim_py.runs import astra_sim_point
from astrasim_py.runs.summary import edge_table, hop_latency, vertex_table
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import check_document

#: NPUs of a point that can be changed, and predicted message-hops of a run.
MOST_NPUS = 1024
MOST_HOPS = 1_000_000
#: Longest size, bandwidth or name of a vertex that a change may say.
_MOST_TEXT = 64
_KEYS = ("sizes", "algorithms", "links", "failed", "placement")


class Run(NamedTuple):
    """A scenario to be run by another process; its files are beside `path`."""

    text: str
    path: str
    title: str
    allow_outside: bool
    allow_code: bool


class LivePoint:
    """A stored point, and what may be changed of it.

    `points`: others of its scenario, whose algorithms are offered too. Raises UsageError: a point of ASTRA-sim's
    inputs, or one that is too large.
    """

    def __init__(self, stored: StoredPoint, points: Sequence[StoredPoint] = ()) -> None:
        if astra_sim_point.is_ours(stored.manifest):
            problem = "is a run of ASTRA-sim's inputs, which the page cannot change"
            raise UsageError(str(stored.folder), problem, "leave out --serve, or name a point of a scenario")
        self.point = point_of(stored)
        npus = stored.row.npus or 0
        if npus > MOST_NPUS:
            problem = f"has {npus:,} NPUs, and --serve takes {MOST_NPUS:,} at most"
            raise UsageError(str(stored.folder), problem, "leave out --serve, or take a smaller point")
        self._npu_of = list(stored.summary.npu_of)
        self._jobs = {row.job: row.ranks for row in stored.summary.jobs}
        self._sizes = _sizes(self.point.config)
        configs = [self.point.config, *(p.manifest.resolved for p in points)]
        called = {entry.collective: None for entry in stored.summary.algorithms}
        computing = "switches" in self.point.config["topology"]
        self._algorithms = {c: _choices(c, configs, computing) for c in called}

    def offers(self) -> dict[str, Any]:
        """What the page needs to make its form, as plain values."""
        return {
            "sizes": [{"label": label, "value": text} for label, text, _ in self._sizes],
            "algorithms": [
                {"collective": c, "choices": [label_of(c, choice) for choice in listed]}
                for c, listed in self._algorithms.items()
            ],
            "failed": list((self.point.config["topology"].get("failed") or {}).get("links") or ()),
        }

    def run(self, change: Mapping[str, Any]) -> Run:
        """The run of a change. `change`: ``sizes`` and ``algorithms`` (number of a control → text, or number of a
        choice), ``links`` and ``failed`` (as in the scenario), ``placement`` (rank → NPU, job after job); all may be
        missing. Raises UsageError: it has another form; whether its values are right is found when it is run.
        """
        for key in change:
            if key not in _KEYS:
                raise UsageError(str(key)[:_MOST_TEXT], "cannot be changed here", f"send {', '.join(_KEYS)}")
        config, texts = deepcopy(dict(self.point.config)), []
        for number, text in _items(change, "sizes", len(self._sizes)):
            label, before, places = self._sizes[number]
            if not isinstance(text, str) or len(text) > _MOST_TEXT:
                raise UsageError(label, "is no size", 'write e.g. "4 MiB"')
            if text.strip() != before:
                texts.append(f"{label} {text.strip()}")
            for *place, kind in places:
                _below(config, place)[kind] = {**_below(config, place)[kind], "size": text.strip()}
        for number, choice in _items(change, "algorithms", len(self._algorithms)):
            collective, listed = list(self._algorithms.items())[number]
            if type(choice) is not int or not 0 <= choice < len(listed):
                raise UsageError(collective, "has no such algorithm", f"choose 0 to {len(listed) - 1}")
            if choice:
                texts.append(f"{collective} by {label_of(collective, listed[choice])}")
                self._set_algorithm(config, collective, listed[choice])
        texts += _change_links(config["topology"], change)
        if (npus := change.get("placement")) not in (None, self._npu_of):
            self._place(config, npus)
            texts.append("ranks moved")
        name = f"{self.point.scenario[:56]}_changed"
        topology, called = config.pop("topology"), config.pop("topology_name")
        if all("placement" in job for job in (config.get("jobs") or {"": {}}).values()):
            config.pop("placement", None)  # a swept value that only jobs use
        document = {"name": name, "topologies": {called: topology}, **config}
        text = yaml.safe_dump(document, sort_keys=False, allow_unicode=True, width=120, default_flow_style=None)
        about = f"# {self.point.scenario}, {self.point.name}; {', '.join(texts) or 'unchanged'}"
        folder = os.path.abspath(self.point.folder)
        about = " ".join(f"{about}. Names of files are relative to {folder}".split())
        return Run(
            text=f"{about}\n{text}",
            path=os.path.join(folder, f"{name}.yaml"),
            title=f"{self.point.name}; {', '.join(texts)}" if texts else self.point.name,
            allow_outside=self.point.allow_outside,
            allow_code=self.point.allow_code,
        )

    def _set_algorithm(self, config: dict, collective: str, choice: Any) -> None:
        table = config.get("algorithms") or {}
        if not isinstance(table, dict):  # one word for all
            table = dict.fromkeys(self._algorithms, table)
        config["algorithms"] = {**table, collective: choice}
        for job in (config.get("jobs") or {}).values():
            if isinstance(job.get("algorithms"), dict):
                job["algorithms"].pop(collective, None)

    def _place(self, config: dict, npus: Any) -> None:
        if not isinstance(npus, list) or len(npus) != len(self._npu_of):
            raise UsageError("placement", f"is no list of {len(self._npu_of)} NPUs", "write rank after rank")
        if not config.get("jobs"):
            config["placement"] = npus
            return
        config.pop("placement", None)
        first = 0
        for name, ranks in self._jobs.items():
            config["jobs"][name].pop("ranks", None)
            config["jobs"][name]["placement"] = npus[first : (first := first + ranks)]


def _items(change: Mapping, key: str, count: int) -> list[tuple[int, Any]]:
    """Pairs of the number of a control and what it says."""
    values = change.get(key) or {}
    if not isinstance(values, dict) or any(number not in map(str, range(count)) for number in values):
        raise UsageError(key, "names a control that is not there", "load the page again")
    return [(int(number), value) for number, value in values.items()]


def _below(config: Any, steps: Sequence[str | int]) -> Any:
    for step in steps:
        config = config[step]
    return config


def _sizes(config: Mapping[str, Any]) -> list[tuple[str, str, list[tuple]]]:
    """Sizes of collectives and messages of written workloads: label, text, and the items that have it."""
    places_of: dict[tuple[str, str], list[tuple]] = {}
    workloads = {"": config.get("workload")} | {
        name: job.get("workload") for name, job in (config.get("jobs") or {}).items()
    }
    for job, items in workloads.items():
        for number, item in enumerate(items if isinstance(items, list) else ()):
            for kind, body in item.items() if isinstance(item, dict) else ():
                if isinstance(body, dict) and isinstance(body.get("size"), str):
                    start = ("jobs", job, "workload") if job else ("workload",)
                    places_of.setdefault((f"{kind} of {job}" if job else kind, body["size"]), []).append(
                        (*start, number, kind)
                    )
    return [
        (label if len(places) == 1 else f"{label} ({len(places)} calls)", text, places)
        for (label, text), places in places_of.items()
    ]


def _choices(collective: str, configs: Sequence[Mapping], computing: bool) -> list[Any]:
    """What may carry out a collective: first what does, then builders, then what other points of the scenario take."""
    choices: list[Any] = []
    for config in configs:
        tables = [job.get("algorithms") for job in (config.get("jobs") or {}).values()] + [config.get("algorithms")]
        for table in tables:
            choice = table.get(collective) if isinstance(table, dict) else table
            choices += [] if choice is None else [choice]
    first = choices[0] if choices else None
    builders = {**ALGORITHMS, **(IN_NETWORK if computing else {})}
    names = [name for name, (served, _) in builders.items() if collective in served]
    listed, labels = [], set()
    for choice_listed in (first, *names, *LIBRARIES, *choices):
        label = label_of(collective, choice_listed)
        if label not in labels:
            listed.append(choice_listed)
            labels.add(label)
    return listed


def label_of(collective: str, choice: Any) -> str:
    """A short text for an algorithm as a scenario says it."""
    if choice is None:
        return default_algorithm(collective)
    if isinstance(choice, list):
        return " | ".join(label_of(collective, part) for part in choice)
    if not isinstance(choice, dict):
        return str(choice)
    parts = [
        str(value) if key == "builder" else f"{key} {str(value).lower() if isinstance(value, bool) else value}"
        for key, value in choice.items()
        if key != "when"
    ]
    conditions = [f"{key} {value}" for key, value in (choice.get("when") or {}).items()]
    return f"{', '.join(parts)} ({', '.join(conditions)})" if conditions else ", ".join(parts)


def _change_links(topology: dict, change: Mapping[str, Any]) -> list[str]:
    """Put links that are changed and failed into a topology; returns texts for people."""
    texts = []
    links, failed = change.get("links") or [], change.get("failed")
    for key, value in (("links", links), ("failed", failed or [])):
        if not isinstance(value, list):
            raise UsageError(key, "is no list", "write a list of links")
    if links:
        topology["links"] = [*(topology.get("links") or ()), *links]
        texts += [f"{_ends(link)} {_said(link, 'bandwidth')}".strip() for link in links]
    before = list((topology.get("failed") or {}).get("links") or ())
    if failed is not None and failed != before:
        texts += [f"{_ends(link)} broken" for link in failed if link not in before]
        texts += [f"{_ends(link)} repaired" for link in before if link not in failed]
        topology["failed"] = {**(topology.get("failed") or {}), "links": failed}
    return texts


def _ends(link: Any) -> str:
    pair = link if isinstance(link, list) else [_said(link, "from"), _said(link, "to")]
    return "–".join(str(end)[:_MOST_TEXT] for end in pair[:2])


def _said(link: Any, key: str) -> str:
    return str(link.get(key, ""))[:_MOST_TEXT] if isinstance(link, dict) else ""


def run_live(run: Run) -> dict[str, Any]:
    """Run a scenario of one point; nothing is written. Returns ``run``, packed data for the page, and ``time_ps``; or
    ``error``, one line. Lets no exception out but an interruption.
    """
    try:
        return _run(run)
    except AstraError as error:
        return {"error": error.lines()[0]}
    except MemoryError:
        return {"error": "out of memory; choose a smaller size, or another algorithm"}
    except Exception as error:
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return {"error": f"this is a defect of astrasim_py, please report it: {text}"[:2000]}


def _run(run: Run) -> dict[str, Any]:
    path = Path(run.path)
    flags = {"allow_outside": run.allow_outside, "allow_code": run.allow_code}
    (point,) = expand(check_document(parse_document(run.text, path.name), path, **flags))
    problem = prepare(point).problem
    plan = plan_for(problem)
    hops = predicted_hops(plan)
    if max(hops, plan.messages) > MOST_HOPS:
        text = f"{plan.messages:,} messages, {hops:,} with each link that they cross, are too many for this page"
        raise UsageError("", text, f"it takes {MOST_HOPS:,}; save it as YAML and run that")
    records = simulate(plan, level="messages")
    topology = plan.problem.topology
    vertex = vertex_table(topology)
    data = page_data(
        run.title,
        records,
        vertex,
        edge_table(topology, records.link["link"]),
        plan.npu_of[: plan.npu_ranks],
        message_chunks(plan, records),
        hop_latency(plan),
        topology.cut,
    )
    return {"run": packed(data, level=1), "time_ps": records.makespan}
