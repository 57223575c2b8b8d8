"""What is written is whole: a point's folder appears complete or not at all, whatever goes wrong."""

from __future__ import annotations

import csv
import dataclasses
import errno
import io
import os
import re
import shutil
import signal
import subprocess
import sys
import textwrap
import time
from decimal import Decimal
from pathlib import Path

import pytest
from limits import WAIT_S

from astrasim_py.core.errors import OutputError, UsageError
from astrasim_py.core.exact_json import json_text
from astrasim_py.core.files import host_mark, write_file
from astrasim_py.core.records import COLLECTIVE_COLUMNS, Table
from astrasim_py.inspection.stored_results import find
from astrasim_py.results import store, stored_points
from astrasim_py.results.csv_io import csv_chunks
from astrasim_py.results.model import File, Manifest, Row, RunCost, Summary
from astrasim_py.results.store import RunOptions
from astrasim_py.system.machine_models import Limits

CALLS = ("write", "fsync", "rename", "open", "mkdir", "close", "replace")
FORK = pytest.mark.skipif(not hasattr(os, "fork"), reason="needs fork")


def collective(**more) -> Table:
    row = {
        "instance": 0,
        "job": "job0",
        "group": "world",
        "type": "all_reduce",
        "size": 1000,
        "algorithm": "ring",
        "ranks": 4,
        "start": 0,
        "end": 20_000,
        "bound": 10_000,
    } | more
    return Table({name: [row[name]] for name in COLLECTIVE_COLUMNS})


def row(name: str, **more) -> Row:
    plain = {"point": name, "sweep": {"size": name}, "topology": "ring", "time_ns": Decimal("20"), "status": "done"}
    return Row(**{"scenario": "s"} | plain | more)


def summary(row: Row) -> Summary:
    return Summary(row=row, busbw_factors=(("all_reduce", 4, "3/2"),), makespan_ps=20_000, events=1)


def save(out: Path, name: str = "1 KiB", *, replace=False, identity=None, status="done", level="links", **more) -> Path:
    """Store a small point; `more` goes to the manifest, `row` to the row."""
    identity = identity or store.point_digest({"name": name}, {})
    folder = store.scenario_folder(out, "s") / "points" / f"001-{store.point_label({'size': name}, '')}"
    manifest = dataclasses.replace(
        MANIFEST,
        point=name,
        folder=folder.name,
        digest=identity,
        level=level,
        status=status,
        exit_code=0 if status == "done" else 4,
        sweep={"size": name},
    )
    values = more.pop("row", {})
    finished = more.pop("finished", 1)
    files = {
        "summary.json": json_text(summary(row(name, **values))).encode(),
        "collective.csv": csv_chunks(more.pop("table", collective())),
        "link.csv": b"link,src,dst,bytes,busy,messages,max_queue,queued,held_up\n0,0,1,500,5,1,0,0,0\n",
    }
    cost = RunCost(finished=Decimal(finished), cpu_s=Decimal("0.5"))
    manifest, options = dataclasses.replace(manifest, **more), RunOptions(level=level)
    return store.write_point(folder, files, manifest, cost, options=options, replace=replace)[0]


MANIFEST = Manifest(
    scenario="s",
    point="p",
    folder="p",
    digest="",
    level="links",
    status="done",
    exit_code=0,
    limits={},
    sweep={},
    inputs={},
    resolved={},
)


def leftovers(out: Path) -> list[str]:
    return [p.name for p in out.rglob(".*")]


class Nth:
    """Does something at the n-th of the system calls that the store makes."""

    def __init__(self, n: int, action, calls=CALLS) -> None:
        self.left, self.action, self.calls = n, action, calls
        self.real = {name: getattr(os, name) for name in calls}

    def wrap(self, name):
        def call(*args, **kwargs):
            self.left -= 1
            if self.left == 0:
                self.action(name)
            return self.real[name](*args, **kwargs)

        return call

    def __enter__(self):
        for name in self.calls:
            setattr(os, name, self.wrap(name))
        return self

    def __exit__(self, *_):
        for name, real in self.real.items():
            setattr(os, name, real)


def fail(name: str) -> None:
    raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))


def die(name: str) -> None:
    os.kill(os.getpid(), signal.SIGKILL)


# -- whole or nothing -------------------------------------------------------------------------------------------


@pytest.mark.parametrize("replace", [False, True])
def test_a_failed_write_leaves_no_trace_and_touches_nothing_else(tmp_path, replace):
    earlier = save(tmp_path, "earlier")
    before = {p.name: p.read_bytes() for p in sorted(earlier.iterdir())}
    if replace:
        save(tmp_path, "new", version="old")
    failures = 0
    for n in range(1, 1000):
        with Nth(n, fail) as calls:
            try:
                new = save(tmp_path, "new", replace=True, version=f"new {n}")
            except OutputError as error:
                failures += 1
                assert error.exit_code == 5
                assert "No space left" in str(error)
                new = None
        assert leftovers(tmp_path) == [], n
        assert {p.name: p.read_bytes() for p in sorted(earlier.iterdir())} == before
        names = [p.manifest.point for p in stored_points.read_points(tmp_path / "s")]
        assert names in (["earlier"], ["earlier", "new"]), n
        if replace:
            assert names == ["earlier", "new"], f"call {n} lost the point that was to be replaced"
        if calls.left > 0:
            assert new is not None
            break
        for point in stored_points.read_points(tmp_path / "s"):
            if point.manifest.point == "new" and not replace:
                shutil.rmtree(point.folder)
    assert failures >= 15


@pytest.mark.slow
@FORK
@pytest.mark.parametrize("replace", [False, True])
def test_a_process_killed_at_any_call_leaves_no_half_point(tmp_path, replace):
    save(tmp_path, "earlier")
    survived = absent = 0
    for n in range(1, 1000):
        out = tmp_path / str(n)
        if replace:
            save(out, "new", version="old")
        child = os.fork()
        if child == 0:
            try:
                with Nth(n, die):
                    save(out, "new", replace=True, version="new")
                os._exit(0)
            finally:
                os._exit(1)
        _, status = os.waitpid(child, 0)
        store.clean(out / "s" / "points")
        assert leftovers(out) == []
        points = stored_points.read_points(out / "s") if (out / "s").is_dir() else ()
        assert len(points) == 1 or (not replace and not points), n
        assert all(stored_points.read_manifest(p.folder, contents=True) for p in points)
        survived += len(points)
        absent += not points
        assert [p.manifest.point for p in stored_points.read_points(save(out, "new").parents[1])] == ["new"]
        if os.WIFEXITED(status):
            break
    assert absent >= 15 or (replace and survived >= 20)


@FORK
def test_kill_at_any_time_leaves_whole_points_only(tmp_path):
    folder = tmp_path / "s" / "points"
    folder.mkdir(parents=True)
    for kill in range(25):
        before = len(os.listdir(folder))
        child = os.fork()
        if child == 0:
            try:
                for number in range(1000):
                    save(tmp_path, f"{kill}-{number}", table=collective(size=number))
            finally:
                os._exit(0)
        give_up = time.monotonic() + WAIT_S
        while len(os.listdir(folder)) <= before + 1 and time.monotonic() < give_up:
            time.sleep(0.001)
        time.sleep(0.0003 * kill)  # at another place of the write each time
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
    visible = [p for p in folder.iterdir() if not p.name.startswith(".")]
    assert len(visible) >= 25
    for point in visible:
        assert stored_points.read_manifest(point, contents=True), point
    store.clean(folder)
    assert leftovers(tmp_path) == []


@pytest.mark.slow
@FORK
@pytest.mark.parametrize("replace", [False, True])
def test_writers_of_the_same_point_do_not_disturb_each_other(tmp_path, replace):
    for round_ in range(6):
        children = []
        for writer in range(4):
            child = os.fork()
            if child == 0:
                try:
                    for _ in range(4):
                        save(tmp_path, f"same {round_}", replace=replace, version=str(writer))
                    os._exit(0)
                except BaseException:
                    os._exit(1)
            children.append(child)
        assert [os.waitpid(child, 0)[1] for child in children] == [0] * 4
    points = stored_points.read_points(tmp_path / "s")
    assert [p.manifest.point for p in points] == [f"same {i}" for i in range(6)]
    assert all(stored_points.read_manifest(p.folder, contents=True) for p in points)
    assert leftovers(tmp_path) == []


def test_a_full_disk_is_an_output_error(tmp_path):
    code = f"""
        import resource, signal
        signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
        resource.setrlimit(resource.RLIMIT_FSIZE, (4096, 4096))
        from pathlib import Path
        from astrasim_py.core.errors import OutputError
        from astrasim_py.results import store
        from astrasim_py.results.model import Manifest, RunCost
        try:
            files = {{"summary.json": b"{{}}", "big": b"x" * 5000}}
            about = dict.fromkeys(("folder", "status", "level", "scenario", "point", "digest"), "")
            about |= dict.fromkeys(("limits", "sweep", "inputs", "resolved"), {{}})
            manifest = Manifest(**about, exit_code=0)
            store.write_point(Path({str(tmp_path)!r}, "p-1"), files, manifest, RunCost(), options=store.RunOptions())
        except OutputError as error:
            print(error.exit_code, error)
    """
    pytest.importorskip("resource")
    done = subprocess.run([sys.executable, "-c", textwrap.dedent(code)], capture_output=True, text=True, check=True)
    assert done.stdout.startswith("5 ") and "File too large" in done.stdout
    assert list(tmp_path.iterdir()) == []


def test_a_folder_that_cannot_be_written_is_an_output_error(tmp_path):
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError, match="cannot be written"):
        save(tmp_path / "file")
    with pytest.raises(OutputError, match="shorter path"):
        save(tmp_path / "/".join(["x" * 250] * 20))


def test_write_file_replaces_in_one_step(tmp_path):
    path = tmp_path / "a" / "b.csv"
    write_file(path, b"old", make_folder=True)
    failures = 0
    for n in range(1, 100):
        with Nth(n, fail) as calls:
            try:
                write_file(path, [b"n", b"ew"])
            except OutputError:
                failures += 1
        assert path.read_bytes() in (b"old", b"new")
        assert leftovers(tmp_path) == []
        if calls.left > 0:
            break
    assert failures >= 5
    assert path.read_bytes() == b"new"


def test_interrupting_a_write_removes_its_folder(tmp_path):
    def chunks():
        yield b"some"
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        store.write_point(
            tmp_path / "p",
            {"summary.json": chunks()},
            MANIFEST,
            RunCost(),
            options=RunOptions(),
        )
    assert list(tmp_path.iterdir()) == []


# -- leftovers --------------------------------------------------------------------------------------------------


def dead_pid() -> int:
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    return done.pid


def test_leftovers_of_dead_processes_are_removed_and_of_living_ones_kept(tmp_path):
    host = host_mark()
    dead, alive = f".tmp-{dead_pid()}-{host}00000000", f".tmp-{os.getppid()}-{host}00000000"
    elsewhere, old = f".tmp-1-{'0' * 16}", f".tmp-1-{'0' * 15}1"
    for name in (dead, alive, elsewhere, old):
        (tmp_path / name).mkdir()
        (tmp_path / name / "node.csv").write_text("half")
    os.utime(tmp_path / old, (0, 0))
    (tmp_path / ".hidden").mkdir()
    assert store.clean(tmp_path) == 2
    assert sorted(p.name for p in tmp_path.iterdir()) == sorted([alive, elsewhere, ".hidden"])
    assert store.clean(tmp_path / "missing") == 0


def test_a_point_moved_aside_by_a_dead_process_comes_back(tmp_path):
    point = save(tmp_path)
    aside = point.parent / f".old-{dead_pid()}-{host_mark()}00000000"
    point.rename(aside)
    assert stored_points.read_points(tmp_path / "s") == ()
    store.clean(point.parent)
    assert [p.folder for p in stored_points.read_points(tmp_path / "s")] == [point]


# -- reading ----------------------------------------------------------------------------------------------------


def as_fifo(path: Path) -> None:
    path.unlink(missing_ok=True)
    os.mkfifo(path)


def edited(path: Path, before: bytes, after: bytes) -> None:
    """Change a file and nothing else."""
    content = path.read_bytes()
    assert before in content
    path.write_bytes(content.replace(before, after))


def forge_manifest(folder: Path, **changes) -> None:
    """Write a manifest that vouches for itself."""
    manifest = dataclasses.replace(stored_points.read_manifest(folder), **changes)
    (folder / "manifest.json").write_bytes(manifest.sealed())


@pytest.mark.parametrize(
    "damage",
    [
        lambda p: (p / "manifest.json").unlink(),
        lambda p: (p / "manifest.json").write_text("{"),
        lambda p: (p / "manifest.json").write_text("[]"),
        lambda p: edited(p / "manifest.json", b'"status": "done"', b'"status": "gone"'),
        lambda p: edited(p / "manifest.json", b'"sha256"', b'"sha255"'),
        lambda p: edited(p / "manifest.json", b"}\n", b"}"),
        lambda p: forge_manifest(p, format=99),
        lambda p: forge_manifest(p, files={"../x": File(sha256="", bytes=1)}),
        lambda p: (p / "summary.json").unlink(),
        lambda p: (p / "summary.json").write_bytes((p / "summary.json").read_bytes().replace(b"done", b"d0ne")),
        lambda p: (p / "collective.csv").write_bytes(b"short"),
        lambda p: (p / "link.csv").write_bytes(b"short"),
        lambda p: as_fifo(p / "run.json"),
        lambda p: as_fifo(p / "link.csv"),
        lambda p: as_fifo(p / "manifest.json"),
        lambda p: (shutil.rmtree(p), p.write_text("a file in its place")),
        lambda p: os.truncate(p / "manifest.json", 10 * 2**30),
        lambda p: ((p / "link.csv").unlink(), (p / "link.csv").mkdir(), (p / "link.csv" / "x").touch()),
    ],
)
def test_a_damaged_point_is_ignored(tmp_path, damage):
    damage(save(tmp_path, "bad"))
    good = save(tmp_path, "good")
    (tmp_path / "s" / "points" / "notes").mkdir()
    (tmp_path / "s" / "points" / "file").write_text("")
    assert [p.folder for p in stored_points.read_points(tmp_path / "s")] == [good]
    assert save(tmp_path, "bad") in [p.folder for p in stored_points.read_points(tmp_path / "s")], (
        "it can be computed again"
    )
    assert leftovers(tmp_path) == []


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda p: edited(p / "summary.json", b"done", b"d0ne"), stored_points.DAMAGED),
        (lambda p: (p / "link.csv").unlink(), stored_points.DAMAGED),
        (lambda p: edited(p / "manifest.json", b'"level": "links"', b'"level": "nodes"'), stored_points.DAMAGED),
        (lambda p: (p / "manifest.json").write_text("{"), stored_points.DAMAGED),
        (lambda p: forge_manifest(p, format=2), "is of another version of astrasim_py"),
    ],
)
def test_a_point_that_is_asked_for_is_damaged_or_of_another_version(tmp_path, damage, reason):
    point = save(tmp_path)
    damage(point)
    assert stored_points.read_point(point) is None
    for path in (point, tmp_path / "s"):
        with pytest.raises(UsageError, match=f"{point.name}: {reason}; run "):
            find(path)


def test_changed_content_is_noticed(tmp_path):
    point = save(tmp_path)
    path = point / "link.csv"
    path.write_bytes(path.read_bytes().replace(b"500", b"600"))
    assert stored_points.read_manifest(point) is not None
    assert stored_points.read_manifest(point, contents=True) is None
    with pytest.raises(OutputError, match=r"link\.csv: is damaged: it is not what its manifest says; run with --fresh"):
        stored_points.read_point(point).table("link")


def test_what_is_read_is_what_was_written(tmp_path):
    point = stored_points.read_point(save(tmp_path, row={"time_ns": Decimal("9007199254740993.125"), "point": "=1+1"}))
    assert point.row.time_ns == Decimal("9007199254740993.125")
    assert point.row.point == "=1+1"
    assert point.row.cpu_s == Decimal("0.5")
    assert [c.tolist() for c in point.table("collective").values()] == [c.tolist() for c in collective().values()]
    with pytest.raises(OutputError, match=r"node\.csv: is not in the manifest; run with --fresh"):
        point.table("node")


def test_volatile_facts_are_outside_the_digests(tmp_path):
    a, b = save(tmp_path / "a", finished=1), save(tmp_path / "b", finished=2)
    for name in sorted(os.listdir(a)):
        same = (a / name).read_bytes() == (b / name).read_bytes()
        assert same == (name != "run.json"), name


@pytest.mark.parametrize(
    ("stored", "required", "met"),
    [
        ({}, {}, True),
        ({"level": "messages"}, {"level": "summary"}, True),
        ({"level": "links"}, {"level": "nodes"}, False),
        ({"timeline": True}, {}, True),
        ({"collectives": False}, {}, False),
        ({"collectives": False}, {"collectives": False}, True),
        ({}, {"timeline": True}, False),
        ({"status": "stuck"}, {"limits": {"max_events": 5}}, True),
        ({"status": "limit", "limits": {"max_events": 5}}, {"limits": {"max_events": 5}}, True),
        ({"status": "limit", "limits": {"max_events": 5}}, {"limits": {"max_events": 6}}, False),
        ({"status": "done", "limits": {"max_events": 5}}, {"limits": {"max_events": 1}}, True),
    ],
)
def test_a_point_is_used_again_when_it_holds_what_is_wanted(stored, required, met):
    manifest = dataclasses.replace(MANIFEST, **stored)
    manifest = dataclasses.replace(manifest, limits=dict(Limits(**manifest.limits)))
    asked = required | {"limits": Limits(**required.get("limits", {}))}
    assert RunOptions(**asked).met_by(manifest) == met


def test_a_higher_level_replaces_a_lower_one_and_not_the_other_way_round(tmp_path):
    folder = save(tmp_path, level="links")
    save(tmp_path, level="messages")
    assert stored_points.read_point(folder).manifest.level == "messages"
    save(tmp_path, level="links")
    assert stored_points.read_point(folder).manifest.level == "messages"
    save(tmp_path, level="links", replace=True)
    assert stored_points.read_point(folder).manifest.level == "links"


# -- names ------------------------------------------------------------------------------------------------------


def test_whatever_can_change_the_records_changes_the_hash(monkeypatch):
    base = {"resolved": {"a": 1}, "inputs": {"x.et": "00"}}
    changes = [{"resolved": {"a": 2}}, {"inputs": {"x.et": "01"}}]
    made = [store.point_digest(**(base | change)) for change in [{}, *changes]]
    monkeypatch.setattr(store, "result_edition", lambda: "0" * 16)
    made.append(store.point_digest(**base))
    assert len(set(made)) == len(made) and {len(each) for each in made} == {64}


@pytest.mark.parametrize("name", ["../x", ".x", "", "a/b", "a\nb", "x" * 65, "a\0b"])
def test_a_scenario_cannot_leave_the_results_folder(tmp_path, name):
    with pytest.raises(UsageError):
        store.scenario_folder(tmp_path, name)


@pytest.mark.parametrize("name", ["../../etc", ".hidden", "a\nb", "size=64 KiB,x=é", "", "x" * 300, "a/b\\c:d*?"])
def test_folder_names_are_plain(name):
    label = store.PointFolders(Path("s")).of(7, store.point_label({"a.b": name, "c": "2"}, ""), "0" * 64).name
    for made in (store.folder_name(name, "0" * 64), label, store.point_label({}, name)):
        assert (
            "/" not in made and not made.startswith(".") and len(made) < 100 and made.isascii() and made.isprintable()
        )
    assert re.fullmatch(r"007-[A-Za-z0-9._-]{1,48}", label)


@pytest.mark.parametrize(
    ("values", "label"),
    [
        ({"topology": "torus", "size": "1 MiB"}, "torus-1MiB"),
        ({"training.tp": "4", "seed": "0", "compute.overlap": "true"}, "tp4-seed0-overlap_true"),
        ({"topologies.ring.bandwidth": "50 GB/s", "files": "a/b c.xml"}, "50GB_s-a_bc.xml"),
        ({"algorithms": "{all_reduce: {builder: ring}}", "size": "é"}, "all_reduce_builder_ring-size"),
        ({}, "s"),
    ],
)
def test_the_label_of_a_point_can_be_read(values, label):
    assert store.point_label(values, "s") == label


def test_a_point_keeps_its_folder_and_two_points_never_share_one(tmp_path):
    a, b = "a" * 64, "b" * 64
    first = save(tmp_path, identity=a)
    folders = store.PointFolders(tmp_path / "s", 1000)
    assert folders.of(5, "other", a) == first, "also where an edited scenario has it at another place"
    assert folders.of(1, "x", b).name == "0001-x"
    assert folders.of(1, "1KiB", b).name == "0001-1KiB"
    assert store.PointFolders(tmp_path / "s").of(1, "1KiB", b).name == f"001-1KiB-{b[:12]}"
    # Two runs that began at once, of two versions of a scenario, want the same folder.
    read = stored_points.read_point(first)
    manifest = dataclasses.replace(read.manifest, digest=b)
    files = {name: (first / name).read_bytes() for name in read.manifest.files}
    for replace in (False, True):
        second, _ = store.write_point(first, files, manifest, RunCost(), options=RunOptions(), replace=replace)
        assert second.name == f"001-1KiB-{b[:12]}"
        assert {p.manifest.digest for p in stored_points.read_points(tmp_path / "s")} == {a, b}


# -- tables over all points -------------------------------------------------------------------------------------


def read(path: Path) -> list[dict]:
    return list(csv.DictReader(io.StringIO(path.read_text())))


def test_tables_follow_from_the_folders_alone(tmp_path):
    for name in ("1 MiB", "64 KiB", "2 GiB"):
        save(tmp_path / "a", name)
    for name in ("2 GiB", "1 MiB", "64 KiB"):
        save(tmp_path / "b", name, finished=7)
    made = [stored_points.write_tables(tmp_path / x / "s") for x in "ab"]
    assert [p.read_bytes() for p in made[0]] == [p.read_bytes() for p in made[1]]
    summary = read(made[0][0])
    assert [r["size"] for r in summary] == ["64 KiB", "1 MiB", "2 GiB"]
    collectives = read(made[0][1])
    assert collectives[0]["algbw_GBps"] == "50" and collectives[0]["busbw_GBps"] == "75"
    assert collectives[0]["efficiency"] == "0.5"


def test_an_older_result_of_the_same_point_is_in_no_table(tmp_path):
    save(tmp_path, "1 MiB", identity="a" * 64, finished=1)
    save(tmp_path, "1 MiB", identity="b" * 64, finished=2)
    (row,) = read(stored_points.write_tables(tmp_path / "s")[0])
    assert row["folder"] == "points/001-1MiB-bbbbbbbbbbbb" and (tmp_path / "s" / row["folder"]).is_dir()
    assert [p.manifest.digest[0] for p in stored_points.newest(stored_points.read_points(tmp_path / "s"))] == ["b"]


@pytest.mark.parametrize("text", ["=cmd|' /C calc'!A0", "+1", "-1", "@SUM(A1)", "\t=1", "'quoted", 'a,"b"\nc'])
def test_csv_cells_are_never_formulas(tmp_path, text):
    save(tmp_path, "p", row={"point": text, "sweep": {text: text}}, table=collective(group=text, algorithm=text))
    for path in stored_points.write_tables(tmp_path / "s"):
        for line in csv.reader(io.StringIO(path.read_text(), newline="")):
            assert not [cell for cell in line if cell.startswith(("=", "+", "-", "@", "\t", "\r"))]
    assert stored_points.read_points(tmp_path / "s")[0].table("collective")["group"].tolist() == [text]
