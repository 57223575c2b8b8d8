"""Files that nccl-tests (``-J FILE``) and rccl-tests (``-Z json``, ``-Z csv``) write, as runs.

nccl-tests write an object per run: its arguments, ``config`` with ``devices`` (of a process with several GPUs only the
first is listed), and ``results``, each with the times of both places. rccl-tests write rows, each with one time and the
numbers of ranks and nodes, or of GPUs if they are built without MPI.
"""

import json
import re
from collections.abc import Iterator
from itertools import groupby

from astrasim_py.core.errors import UsageError
from astrasim_py.core.fields import NPU_CAP
from astrasim_py.core.table_file import table_rows
from astrasim_py.measured.benchmark import WHOLE, BenchmarkRun, Device, Note, Time, dotted

_PLACES = (("out_of_place", "0"), ("in_place", "1"))
#: Headings of the CSV that are other keys in JSON.
_COLUMNS = {"collective": "name", "inplace": "inPlace", "algbw": "algBw", "busbw": "busBw", "#wrong": "wrong"}


def is_json(text: str) -> bool:
    """Whether a text begins like JSON, and not with the label of a launcher."""
    return re.match(r"\s*(\{|\[\s*\{)", text) is not None


def is_table(text: str) -> bool:
    """Whether a text is the CSV of rccl-tests."""
    return {"size", "inplace", "algbw", "busbw"} <= {name.strip() for name in text.partition("\n")[0].split(",")}


def runs(text: str, place: str, note: Note) -> Iterator[BenchmarkRun]:
    """The runs of a file. Raises UsageError: neither JSON nor CSV of these programs."""
    if not is_table(text):
        return _documents(text, place, note)
    rows = [
        (row_place, {_COLUMNS.get(name, name): cell for name, cell in cells.items()})
        for row_place, cells in table_rows(text, place, "what rccl-tests write", ("size", "time"))
    ]
    return _runs_of_rows(rows)


def _documents(text: str, place: str, note: Note) -> Iterator[BenchmarkRun]:
    """The runs of one or more JSON documents."""
    decoder, position = json.JSONDecoder(parse_float=str, parse_int=str), 0
    while position < len(text):
        line_place = f"{place}:{1 + text.count(chr(10), 0, position)}"
        try:
            document, end = decoder.raw_decode(text, position)
        except (json.JSONDecodeError, RecursionError) as error:
            line = line_place.rpartition(":")[2] if isinstance(error, RecursionError) else str(error.lineno)
            problem = f"is no whole JSON: {error.args[0].partition(':')[0]}"
            raise UsageError(f"{place}:{line}", problem, WHOLE) from None
        position = len(text) - len(text[end:].lstrip(" \t\r\n,"))
        items = document if isinstance(document, list) else [document]
        if not all(isinstance(item, dict) for item in items):
            raise UsageError(line_place, "is no JSON of nccl-tests", "name what nccl-tests write with -J")
        for item in items if "results" in (items[0] if items else {}) else ():
            yield _run(item, line_place, note)
        if items and "results" not in items[0]:
            yield from _runs_of_rows([(f"{line_place}: [{number}]", row) for number, row in enumerate(items)])


def _run(document: dict, here: str, note: Note) -> BenchmarkRun:
    """The run of a document of nccl-tests."""
    config, results, args = document.get("config"), document.get("results"), document.get("args")
    config = config if isinstance(config, dict) else {}
    if not isinstance(results, list) or not all(isinstance(result, dict) for result in results):
        raise UsageError(here, "its results are no list of objects", "name what nccl-tests write with -J")
    run = BenchmarkRun(here, ranks=0)
    tests = [match[1] for word in (args if isinstance(args, list) else [])[:1] if (match := _named(word))]
    run.test = tests[0] if tests else ""
    code = _text(document.get("nccl_version"))
    run.version = dotted(int(code)) if _is_count(code) else ""
    run.devices = _devices(config, here)
    beyond = document.get("out_of_bounds")
    if isinstance(beyond, dict) and _text(beyond.get("okay")) == "false":
        note(here, f"says that {_text(beyond.get('count'))} sizes had wrong values")
    listed_errors = document.get("errors")
    if errors := [_text(error) for error in listed_errors if error] if isinstance(listed_errors, list) else []:
        note(here, f"{len(errors)} errors of NCCL, the first: {errors[0][:120]}")
    for number, result in enumerate(results):
        for key, in_place in _PLACES:
            cells = result.get(key)
            if isinstance(cells, dict):
                run.of_host |= "cpu_time" in cells
                us = cells.get("time", cells.get("cpu_time"))
                numbers = (_text(us), *(_text(cells.get(name)) for name in ("alg_bw", "bus_bw", "nwrong")))
                place = f"{here}: results[{number}]"
                call = (_size(result, place), _text(result.get("type")), _text(result.get("redop")))
                run.times.append(Time(place, *call, in_place, *numbers))
    return run


def _named(word: object) -> re.Match | None:
    return re.search(r"([a-z]+(?:_[a-z]+)*)_perf(?:_mpi)?\b", word) if isinstance(word, str) else None


def _devices(config: dict, here: str) -> list[Device]:
    """A device per rank: a process with several GPUs, which lists its first, has the next ranks on its host."""
    entries, devices = config.get("devices"), []
    gpus = 1
    for key in ("nthreads", "ngpus"):
        gpus *= max(int(text), 1) if _is_count(text := _text(config.get(key))) else 1
    try:
        ranks = [int(entry["rank"]) for entry in entries or ()]
        gpus = gpus if all(rank % gpus == 0 for rank in ranks) and len(set(ranks)) == len(ranks) else 1
        for entry, rank in zip(entries or (), ranks, strict=True):
            group, process, host, gpu = (_text(entry.get(key)) for key in ("group", "pid", "hostname", "device_info"))
            devices += [Device(rank + more, int(group or 0), process, host, gpu) for more in range(min(gpus, 1024))]
    except (KeyError, TypeError, ValueError, AttributeError):
        raise UsageError(f"{here}: config.devices", "is no list of ranks", WHOLE) from None
    return devices


def _runs_of_rows(rows: list[tuple[str, dict]]) -> Iterator[BenchmarkRun]:
    """The runs of rows of rccl-tests, given with their places: of one test and number of ranks."""
    for row_place, cells in rows:
        if not {"size", "time", "inPlace"} <= cells.keys():
            raise UsageError(row_place, "is no row of rccl-tests", "name what nccl-tests write with -J")

    def key(row: tuple[str, dict]) -> tuple:
        return tuple(_text(row[1].get(name)) for name in ("name", "ranks", "nodes", "gpus"))

    for (name, ranks, nodes, gpus), same_rows in groupby(rows, key):
        run_rows = list(same_rows)
        run = BenchmarkRun(run_rows[0][0], name, "RCCL")
        count, hosts = (int(text) if _is_count(text) else 0 for text in (ranks or gpus, nodes or "1"))
        if count and hosts and count % hosts == 0 and count <= NPU_CAP:
            run.devices = [Device(r, 0, "", str(r * hosts // count), "") for r in range(count)]
        for place, cells in run_rows:
            numbers = (_text(cells.get(name)) for name in ("time", "algBw", "busBw", "wrong"))
            call = (_size(cells, place), _text(cells.get("type")), _text(cells.get("redop")))
            in_place = "1" if _text(cells.get("inPlace")) in ("1", "True") else "0"
            run.times.append(Time(place, *call, in_place, *numbers))
        yield run


def _size(cells: dict, here: str) -> str:
    size = _text(cells.get("size"))
    if not _is_count(size):
        raise UsageError(f"{here}: size", f'"{size[:64]}" is no count', WHOLE)
    return size


def _is_count(text: str) -> bool:
    return re.fullmatch(r"[0-9]{1,18}", text) is not None


def _text(value: object) -> str:
    """A number or text as it is written; empty where there is none."""
    return "" if value is None else str(value).strip()
