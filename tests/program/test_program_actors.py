"""Algorithms in which switches run traces: their files, what is refused, and what verification finds."""

from dataclasses import replace

import numpy as np
import pytest

import astrasim_py as ap
from astrasim_py.builders.draft import Draft, finish
from astrasim_py.chakra.lint import lint_prefix
from astrasim_py.chakra.schema import NodeType
from astrasim_py.collectives.chunks import Buffer
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.files import read_algorithm, write_npz
from astrasim_py.program.interchange import algorithm_from_traces, algorithm_traces
from astrasim_py.verification.verifier import verify


def star(n: int = 4):
    """One chunk of every rank, added at a switch, which sends the sum to all."""
    draft, ranks, zero = Draft(n + 1, 1), np.arange(n), np.zeros(n, dtype=np.int64)
    switch, cell = np.full(n, n), (Buffer.SCRATCH, zero[:1])
    draft.send(rank=ranks, peer=switch, tag=0, idx=0, src=(Buffer.INPUT, zero))
    done = draft.recv(rank=[n], peer=zero[:1], tag=0, idx=0, dst=cell)
    for rank in range(1, n):
        received = draft.recv(rank=[n], peer=np.array([rank]), tag=0, idx=0)
        done = draft.reduce(rank=[n], payload=received, idx=0, src=cell, dst=cell, after=(done,))
    draft.send(rank=switch, peer=ranks, tag=1, idx=0, src=(Buffer.SCRATCH, zero), after=(done.repeat(n),))
    draft.recv(rank=ranks, peer=switch, tag=1, idx=0, dst=(Buffer.INPUT, zero))
    return finish(draft, "star", "all_reduce", actors=("leaf0",))


def test_actors_have_traces_behind_the_ranks() -> None:
    made = star()
    assert (made.ranks, made.positions, len(made.traces)) == (4, 5, 5)
    assert repr(made) == "Algorithm(star: all_reduce, 4 ranks, 1 switch, 1 chunk)"
    assert made.slots_of(0) == 1
    assert made.messages == 8
    assert made.rotated is None
    assert verify(made).passes


@pytest.mark.parametrize("form", ["et", "npz"])
def test_files_keep_the_switches(tmp_path, form) -> None:
    made, path = star(), str(tmp_path / ("a" if form == "et" else "a.npz"))
    if form == "npz":
        write_npz(path, made)
    else:
        ap.write_algorithm(path, made)
        head, last = (algorithm_traces(made)[k] for k in (0, 4))
        assert [head.meta(key) for key in ("ranks", "actors", "actor")] == [4, 1, None]
        assert [last.meta(key) for key in ("ranks", "actors", "actor")] == [4, 1, "leaf0"]
    read = read_algorithm(path)
    assert (read.ranks, read.actors, read.digest()) == (4, ("leaf0",), made.digest())
    assert verify(read).passes
    again = str(tmp_path / ("b.npz" if form == "et" else "b"))
    ap.write_algorithm(again, read)
    assert read_algorithm(again).digest() == made.digest()


def test_a_file_less_or_a_name_less_is_refused(tmp_path) -> None:
    traces = algorithm_traces(star())
    for listed, fault in (
        (traces[:4], "has 0 traces of switches behind 4 ranks; the first states actors: 1, ranks: 4"),
        ((*traces[:3], *traces[4:]), "has 1 traces of switches behind 3 ranks"),
        ((*traces, traces[4]), "has 2 traces of switches behind 4 ranks"),
    ):
        with pytest.raises(AlgorithmError, match=fault):
            algorithm_from_traces(listed)
    with pytest.raises(AlgorithmError, match="give each a name of its own"):
        replace(star(), actors=("",))
    column = np.where(traces[0].type == NodeType.COMM_SEND, 5, traces[0].column("comm_dst"))
    with pytest.raises(AlgorithmError, match="comm_dst 5 is not one of 4 ranks and 1 switch"):
        algorithm_from_traces((traces[0].with_columns({"comm_dst": column}), *traces[1:]))


def test_what_switches_cannot_do_is_refused(tmp_path) -> None:
    made = star()
    for use in (lambda: made.split(2), lambda: made + made, lambda: ap.write_algorithm(str(tmp_path / "a.xml"), made)):
        with pytest.raises(AlgorithmError, match="switch"):
            use()
    assert not (tmp_path / "a.xml").exists()


def changed(made, position: int, **columns):
    """The same algorithm with columns of one trace changed: name to {row: value}."""
    traces = list(made.traces)
    trace = traces[position]
    own = {name: trace.column(name).copy() for name in columns}
    for name, rows in columns.items():
        own[name][list(rows)] = list(rows.values())
    traces[position] = trace.with_columns(own)
    return replace(made, traces=tuple(traces))


def test_an_actor_has_scratch_only() -> None:
    made = star()
    verdict = verify(changed(made, 4, dst_buf={0: int(Buffer.INPUT)}))
    assert verdict.well_formed is False
    assert verdict.problem == "switch leaf0 node 0 accesses input chunk 0: a switch has scratch only"


def test_lint_of_a_set_with_switches(tmp_path) -> None:
    ap.write_algorithm(str(tmp_path / "a"), star())
    assert [found.rule for found in lint_prefix(tmp_path / "a")] == []
    ap.write_algorithm(str(tmp_path / "b"), changed(star(), 4, dst_buf={0: int(Buffer.INPUT)}))
    found = lint_prefix(tmp_path / "b")
    assert [(each.severity, each.rule) for each in found] == [("error", "switch-buffer")]
    assert "switch leaf0 has scratch only" in found[0].message


def test_a_wrong_peer_is_named_by_its_switch() -> None:
    made = star()
    first = int(np.flatnonzero(made.traces[4].type == NodeType.COMM_SEND)[0])
    verdict = verify(changed(made, 4, comm_dst={first: 1}))
    assert verdict.well_formed is False
    # The last of the two steps that now send to rank 1.
    assert verdict.problem == "switch leaf0 node 8 sends to rank 1 (tag 1), which never receives it"
