"""Files that somebody names are read as regular files of bounded size, or refused in one line."""

from __future__ import annotations

import os

import pytest

from astrasim_py.core.errors import AlgorithmError, TopologyError
from astrasim_py.core.files import read_regular


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
