"""Which document is of which rank."""

import io
import tarfile

import pytest

from astrasim_py.core.errors import TraceError, UsageError
from astrasim_py.pytorch.rank_files import rank_files


@pytest.fixture
def folder(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    for name in ("k_0.json", "k_1.json", "k_10.json", "k_x.json", "w3.17.json", "w4.17.json", "a[1].json"):
        (tmp_path / name).write_text("{}")
    with tarfile.open("set.tar", "w") as archive:
        for name in ("run/w0_9.json", "run/w2_9.json", "run/w1_9.json", "run/notes.txt"):
            info = tarfile.TarInfo(name)
            info.size = 2
            archive.addfile(info, io.BytesIO(b"{}"))
    return tmp_path


@pytest.mark.parametrize(
    ("names", "expected"),
    [
        (["k_{rank}.json"], {0: "k_0.json", 1: "k_1.json", 10: "k_10.json"}),
        (["k_1.json", "k_0.json"], {0: "k_0.json", 1: "k_1.json"}),
        (["w{rank}.*.json"], {3: "w3.17.json", 4: "w4.17.json"}),
        (["w*.17.json"], {3: "w3.17.json", 4: "w4.17.json"}),
        (["k_x.json"], {None: "k_x.json"}),
        (["a[1].json"], {None: "a[1].json"}),
        (["set.tar"], {rank: f"set.tar!run/w{rank}_9.json" for rank in range(3)}),
        (["set.tar!run/w{rank}_*.json"], {rank: f"set.tar!run/w{rank}_9.json" for rank in range(3)}),
        (["set.tar!run/w1_9.json"], {None: "set.tar!run/w1_9.json"}),
    ],
)
def test_ranks_by_name(names, expected, folder):
    found = rank_files(names, "--kineto")
    assert found == expected
    assert list(found) == sorted(expected, key=lambda rank: -1 if rank is None else rank)


@pytest.mark.parametrize(
    ("names", "problem"),
    [
        (["m_{rank}.json"], "--kineto: nothing is called m_{rank}.json"),
        (["m.json"], "nothing is called m.json"),
        (["set.tar!x{rank}"], "nothing is called"),
        (["k_1.json", "*_1.json", "k_{rank}.json"], "rank 1 has two files|are not in their names"),
        (["k_1.json", "k_x.json"], "the ranks of 2 files are not in their names"),
        (["w{rank}.17.json", "set.tar!run/w{rank}_9.json", "k_{rank}.json"], "rank 0 has two files"),
    ],
)
def test_ranks_that_cannot_be_told(names, problem, folder):
    with pytest.raises(UsageError, match=problem):
        rank_files(names, "--kineto")


def test_ranks_beyond_reason_and_what_is_no_file(folder):
    (folder / "z_99999999.json").write_text("{}")
    with pytest.raises(UsageError, match="rank 99999999 is not below 1048576"):
        rank_files(["z_{rank}.json"], "--kineto")
    with pytest.raises(TraceError, match="is not a regular file"):
        rank_files(["."], "--kineto")
