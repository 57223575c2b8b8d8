"""Files that somebody names are read as regular files of bounded size, or refused in one line."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

import astrasim_py
from astrasim_py.core.errors import AlgorithmError, OutputError, TopologyError
from astrasim_py.core.files import host_mark, named, read_regular, write_file


def read(path, most=10, error=TopologyError):
    return read_regular(path, most, error, what="a file of links", remedy="write fewer links")


def test_a_file_up_to_the_cap_is_read(tmp_path):
    path = tmp_path / "a"
    path.write_bytes(b"0123456789")
    assert read(path) == b"0123456789"
    with pytest.raises(TopologyError, match="more than 9 bytes, the cap for such a file; write fewer links"):
        read(path, 9)


def test_what_is_no_file_is_refused_at_once_in_the_family_asked_for(tmp_path):
    fifo = tmp_path / "fifo"
    os.mkfifo(fifo)
    for path in (fifo, "/dev/zero"):
        with pytest.raises(AlgorithmError, match="is not a regular file; name a file of links"):
            read(path, error=AlgorithmError)
    with pytest.raises(TopologyError, match="cannot be read: No such file"):
        read(tmp_path / "none")
    with pytest.raises(TopologyError, match="is not a file name; check the name"):
        read("a\0b")
    with pytest.raises(TopologyError, match=r"is not a regular file|cannot be read"):
        read(tmp_path)


def test_what_a_killed_process_left_is_removed_by_the_next_that_writes_there(tmp_path):
    done = subprocess.Popen([sys.executable, "-c", ""])
    done.wait()
    left, alive, other = (
        tmp_path / f".tmp-{pid}-{host}00000000"
        for pid, host in ((done.pid, host_mark()), (os.getpid(), host_mark()), (done.pid, "0" * 8))
    )
    for path in (left, alive, other):
        path.write_text("half")
    write_file(tmp_path / "whole", b"all")
    assert sorted(tmp_path.iterdir()) == sorted([alive, other, tmp_path / "whole"])


@pytest.mark.parametrize("name", ["\0", "a\0/b", "\ud800"])
def test_what_cannot_be_a_name_is_refused_before_anything_is_done(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(TopologyError, match=r"^'.*': is not a file name; check the name"):
        named(name, TopologyError)
    with pytest.raises(OutputError, match="is not a file name; check the name"):
        write_file(name, b"x", make_folder=True)
    assert named("a/é", TopologyError) == Path("a/é")


@pytest.mark.parametrize("name", ["a" * 300, "a" * 300 + "/b", "d/" * 1500 + "x", "d/" * 3000 + "x"])
def test_a_name_too_long_or_too_deep_cannot_be_written(tmp_path, monkeypatch, name):
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OutputError, match=r"cannot be written: .*use a shorter path"):
        write_file(name, b"x", make_folder=True)


def test_nothing_asks_pathlib_whether_something_is_there():
    """It raises OSError of a name that is too long in some versions of Python; ``os.path`` never does."""
    found = [
        f"{path.name}: {line.strip()}"
        for path in Path(astrasim_py.__file__).parent.rglob("*.py")
        for line in path.read_text("utf-8").splitlines()
        if re.search(r"(?<!os\.path)\.(exists|is_file|is_dir|is_symlink|is_fifo)\(", line)
    ]
    assert not found


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no FIFOs here")
def test_what_is_no_regular_file_is_not_replaced(tmp_path):
    fifo, link = tmp_path / "fifo", tmp_path / "link"
    os.mkfifo(fifo)
    link.symlink_to(fifo)
    for path in (fifo, link):
        with pytest.raises(OutputError, match="is no regular file; choose another name"):
            write_file(path, b"text")
    assert fifo.is_fifo() and link.is_symlink() and sorted(tmp_path.iterdir()) == [fifo, link]
