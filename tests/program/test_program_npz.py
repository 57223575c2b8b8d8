"""Algorithms of a rotation in one ``.npz`` file: one rank's trace, and all ranks' traces are the same again."""

from __future__ import annotations

import numpy as np
import pytest

from astrasim_py.builders.registry import build
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program import files
from astrasim_py.program.files import read_algorithm, read_npz, write_npz
from astrasim_py.program.rotation import Rotated
from astrasim_py.program.traces import Traces

ROTATED = [
    ("ring", "all_reduce", 6, {}),
    ("ring", "all_gather", 130, {}),
    ("direct", "all_to_all", 5, {}),
    ("halving_doubling", "all_reduce", 8, {}),
    ("bruck", "all_to_all", 7, {}),
    ("hierarchical", "all_reduce", 12, {"dims": [3, 4]}),
    ("hierarchical", "all_gather", 12, {"dims": [3, 4]}),
]


@pytest.mark.parametrize(("name", "collective", "ranks", "more"), ROTATED)
def test_an_algorithm_of_a_rotation_is_read_back_as_one(tmp_path, name, collective, ranks, more):
    made = build(name, collective, ranks, **more)
    assert made.rotation is not None and not made.given
    write_npz(tmp_path / "a.npz", made)
    back = read_algorithm(tmp_path / "a.npz")
    assert back.rotation == made.rotation
    assert back.digest() == made.digest()
    assert [trace.digest() for trace in back.traces] == [trace.digest() for trace in made.traces]
    write_npz(tmp_path / "b.npz", back)
    assert (tmp_path / "b.npz").read_bytes() == (tmp_path / "a.npz").read_bytes()


def test_what_turns_with_the_rank_is_stated_as_a_rule(tmp_path):
    write_npz(tmp_path / "a.npz", build("ring", "all_reduce", 512))
    with np.load(tmp_path / "a.npz") as arrays:
        assert not [name for name in arrays.files if name.startswith("all_")]
        assert len(arrays["node_id"]) == len(build("ring", "all_reduce", 512).traces[0])
    assert (tmp_path / "a.npz").stat().st_size < 100_000


def test_peers_that_do_not_turn_are_written_out(tmp_path):
    made = build("ring", "all_gather", 5)
    columns = made.traces.rotated._columns

    def other(ranks, names):
        found = dict(columns(ranks, names))
        found["comm_dst"] = np.where((found["comm_dst"] >= 0) & (ranks[:, None] > 0), 0, found["comm_dst"])
        return found

    traces = Traces.of_rotation(Rotated(made.rotation, made.traces.rotated.base, other))
    assert files._stated(made.traces.rotated, made.chunks) is not None
    assert files._stated(traces.rotated, made.chunks) is None


@pytest.mark.parametrize(
    ("changes", "says"),
    [
        ({"rotation": np.array([3, 3])}, "does not fit its ranks"),
        ({"rotation": np.array([0, 12])}, "does not fit its ranks"),
        ({"rotation": np.empty(0, dtype=np.int64)}, "does not fit its ranks"),
        ({"rotation": np.array([2**40, 2**40])}, "does not fit its ranks"),
        ({"turned": np.array([1, 0])}, "does not fit its trace"),
        ({"turned": np.array([-1, 0, 0, 0])}, "does not fit its trace"),
        ({"ranks": np.int64(2**31), "rotation": np.array([2**31])}, "traces do not fit"),
        ({"all_src_off": np.array([1, 2])}, "does not fit its ranks"),
        ({"all_msg_chunk_cnt": 9}, "turns chunks beyond the last"),
        ({"all_msg_chunk_idx": -1}, "turns chunks beyond the last"),
        ({"col_comm_dst": 0}, "sends to itself"),
        ({"col_comm_dst": 12}, "is not one of 12 ranks"),
        ({"turned": np.array([0, 0, 1, 0]), "col_src_off": 99}, "belongs to no rank"),
    ],
)
def test_a_rotation_that_contradicts_itself_is_refused(tmp_path, changes, says):
    made = build("ring", "all_reduce", 12)
    write_npz(tmp_path / "a.npz", made)
    with np.load(tmp_path / "a.npz") as arrays:
        content = dict(arrays)
    for name, value in changes.items():
        if isinstance(value, int):
            size = content[name].size if name in content else made.nodes
            value = np.full(size, value, dtype=np.int64)
        content[name] = value
    np.savez_compressed(tmp_path / "b.npz", **content)
    with pytest.raises(AlgorithmError, match=says):
        read_npz(tmp_path / "b.npz")
