"""`verify`: four verdicts, a counterexample with its line, an exit code, and stable keys of JSON."""

from __future__ import annotations

import json

import numpy as np
import pytest

from astrasim_py.chakra.et_io import read_trace, write_prefix
from astrasim_py.cli.main import main

HEAD = '<algo name="t" proto="{proto}" nchannels="1" nchunksperloop="{chunks}" ngpus="{n}" coll="{coll}" inplace="1">'
KEYS = (
    "file", "collective", "ranks", "well_formed", "slots", "terminates", "min_slots", "min_slots_large",
    "max_safe_bytes", "correct", "wrong_cells", "race_free", "races", "order_consistent", "problems", "unknown",
    "warnings", "counterexample",
)  # fmt: skip


def step(s, kind, src, dst, dep=(-1, -1), has=0, cnt=1) -> str:
    (a, i), (b, j) = src, dst
    return (
        f'      <step s="{s}" type="{kind}" srcbuf="{a}" srcoff="{i}" dstbuf="{b}" dstoff="{j}" cnt="{cnt}" '
        f'depid="{dep[0]}" deps="{dep[1]}" hasdep="{has}"/>'
    )


def program(gpus: list[list[tuple[int, int, list[str]]]], coll="allreduce", chunks=1, proto="Simple") -> str:
    """XML of gpus, each a list of thread blocks (send, recv, steps); one element a line."""
    lines = [HEAD.format(coll=coll, chunks=chunks, n=len(gpus), proto=proto)]
    for rank, tbs in enumerate(gpus):
        lines.append(f'  <gpu id="{rank}" i_chunks="{chunks}" o_chunks="0" s_chunks="1">')
        for i, (send, recv, steps) in enumerate(tbs):
            lines += [f'    <tb id="{i}" send="{send}" recv="{recv}" chan="0">', *steps, "    </tb>"]
        lines.append("  </gpu>")
    return "\n".join([*lines, "</algo>", ""])


I, S = ("i", 0), ("s", 0)


def exchange(last=("re", S, I), dep=(-1, -1), wait=True) -> str:
    """Two ranks exchange their chunk through scratch and add; `last` ends each, in a thread block of its own."""
    gpus = []
    for rank in range(2):
        peer = 1 - rank
        gpus.append(
            [
                (peer, peer, [step(0, "s", I, S), step(1, "r", I, S, has=1)]),
                (-1, -1, [step(0, *last, dep=(0, 1) if wait else dep)]),
            ]
        )
    return program(gpus)


def run(capsys, *argv) -> tuple[int, str, str]:
    code = main(["verify", *map(str, argv)])
    out, err = capsys.readouterr()
    assert "Traceback" not in err
    return code, out, err


@pytest.fixture
def xml(tmp_path):
    def write(text: str):
        path = tmp_path / "a.xml"
        path.write_text(text)
        return path

    return write


def verdicts(capsys, *argv) -> tuple[int, dict]:
    code, out, err = run(capsys, *argv, "--format", "json")
    assert not err
    row = json.loads(out)
    assert tuple(row) == KEYS
    return code, row


def test_a_right_program_passes(xml, capsys):
    code, out, err = run(capsys, xml(exchange()))
    assert (code, err) == (0, "")
    assert [line.split()[:2] for line in out.splitlines()[1:5]] == [
        ["well-formed", "yes"], ["terminates", "yes"], ["correct", "yes"], ["race-free", "yes"],
    ]  # fmt: skip
    code, row = verdicts(capsys, xml(exchange()))
    assert code == 0
    assert (row["slots"], row["min_slots"], row["min_slots_large"], row["wrong_cells"], row["races"]) == (2, 1, 1, 0, 0)
    assert row["counterexample"] is None and row["problems"] == []


def test_a_wrong_sum_names_the_cell_its_content_and_the_line(xml, capsys):
    path = xml(exchange(last=("cpy", S, I)))
    lines = [1 + i for i, text in enumerate(path.read_text().splitlines()) if 'type="cpy"' in text]
    code, row = verdicts(capsys, path)
    found = row["counterexample"]
    rank = found["rank"]
    assert (code, row["wrong_cells"], rank in (0, 1)) == (1, 2, True)
    assert (found["kind"], found["buffer"], found["chunk"]) == ("post-condition", "input", 0)
    assert (found["step"], found["line"]) == (f"rank {rank} tb 1 step 0", lines[rank])
    assert (found["holds"], found["expected"]) == (f"chunk 0 of rank {1 - rank}", "the sum of chunk 0 of ranks 0, 1")
    code, out, _ = run(capsys, path)
    assert code == 1 and "correct      NO       2 cells are wrong" in out
    assert f"written by rank {rank} tb 1 step 0 (line {lines[rank]}): chunk 0 of rank {1 - rank}" in out


def test_a_race_names_both_steps(xml, capsys):
    code, row = verdicts(capsys, xml(exchange(wait=False)))
    assert code == 1
    # Whatever order the scratch cell is read and written in, its value is in doubt.
    assert row["race_free"] is False and row["races"] >= 2
    assert any(problem.startswith("race: rank 0 tb ") for problem in row["problems"])


def ring(types: str) -> str:
    """All ranks send first, then pass on: with one slot everybody waits for everybody."""
    n = 3
    gpus = []
    for rank in range(n):
        here = ("i", rank)
        steps = [step(0, "s", here, here)]
        for k in range(1, n - 1):
            back = ("i", (rank - k) % n)
            steps.append(step(k, "rcs", back, back))
        last = ("i", (rank + 1) % n)
        steps.append(step(n - 1, "r", last, last))
        gpus.append([((rank + 1) % n, (rank - 1) % n, steps)])
    return program(gpus, coll="allgather", chunks=n).replace('i_chunks="3" o_chunks="0"', 'i_chunks="0" o_chunks="3"'
    ).replace('"i"', '"o"')  # fmt: skip


def test_slots_decide_about_a_ring_of_fused_steps(xml, capsys):
    path = xml(ring("rcs"))
    assert run(capsys, path)[0] == 0
    code, row = verdicts(capsys, path, "--slots", 1)
    assert code == 1
    assert (row["terminates"], row["min_slots"], row["correct"]) == (False, 2, True)
    chain = row["counterexample"]["chain"]
    assert len(chain) == 3 and all("cannot send to rank" in line and "(line " in line for line in chain)


def test_an_ill_formed_program_names_its_line(xml, capsys):
    path = xml(exchange().replace('hasdep="1"', 'hasdep="0"'))
    code, out, _ = run(capsys, path)
    assert code == 1
    assert "well-formed  NO" in out and f"{path}:" in out


def test_a_file_that_cannot_be_read_is_one_line(xml, capsys):
    code, out, err = run(capsys, xml('<algo name="x">'))
    assert (code, out) == (3, "") and len(err.splitlines()) == 1


def test_a_custom_collective_needs_a_contract(xml, tmp_path, capsys):
    gpus = [[(1, -1, [step(0, "s", I, I)])], [(-1, 0, [step(0, "r", I, I)])]]
    path = xml(program(gpus, coll="custom"))
    code, row = verdicts(capsys, path)
    assert (code, row["correct"]) == (0, None) and "give a contract" in row["unknown"]
    contract = tmp_path / "c.yaml"
    contract.write_text('ranks: 2\nchunks: 1\noutputs: {1: {0: "0:0"}}\n')
    assert verdicts(capsys, path, "--contract", contract)[1]["correct"] is True
    contract.write_text('ranks: 2\nchunks: 1\noutputs: {1: {0: "0:0 + 1:0"}}\n')
    code, row = verdicts(capsys, path, "--contract", contract)
    assert (code, row["wrong_cells"]) == (1, 1)
    assert verdicts(capsys, path, "--collective", "broadcast", "--root", 0)[1]["correct"] is True
    assert verdicts(capsys, path, "--collective", "broadcast", "--root", 1)[0] == 1
    contract.write_text('ranks: 3\nchunks: 1\noutputs: {1: {0: "0:0"}}\n')
    assert run(capsys, path, "--contract", contract)[0] == 3


def test_builders_and_several_at_once(capsys):
    code, out, _ = run(capsys, "builder:ring:8", "builder:direct:all_to_all:4", "--format", "json")
    assert code == 0
    assert [row["collective"] for row in json.loads(out)] == ["all_reduce", "all_to_all"]


@pytest.mark.parametrize(
    "argv",
    [
        ["builder:ring:8", "--slots", "0"],
        ["builder:ring:8", "--root", "1"],
        ["builder:ring:8", "--collective", "all_gather"],
        ["builder:ring"],
    ],
)
def test_bad_usage_is_told(argv, capsys):
    code, out, err = run(capsys, *argv)
    assert (code, out) == (2, "") and len(err.splitlines()) == 1


def test_one_that_cannot_be_read_does_not_hide_the_others(xml, capsys):
    code, out, err = run(capsys, "builder:ring:4", xml("garbage"))
    assert code == 3 and "correct      yes" in out and len(err.splitlines()) == 1


LAYER = """
topology: {shape: ring, npus: 4, bandwidth: 100 GB/s, latency: 1 us}
workload:
  - all_gather: {name: gather, size: 64 KiB}
  - compute: {name: product, time: 1 ms, tiles: 4, consumes: gather, produces: scatter}
  - reduce_scatter: {name: scatter, size: 64 KiB}
algorithms: {all_gather: ring, reduce_scatter: ring}
"""


def test_an_inlined_workload_is_verified(tmp_path, capsys):
    (tmp_path / "layer.yaml").write_text(LAYER)
    step = tmp_path / "step"
    assert main(["convert", "--inline", str(tmp_path / "layer.yaml"), str(step)]) == 0
    capsys.readouterr()
    code, out, _ = run(capsys, step)
    assert code == 0 and out.splitlines() == [
        f"{step}: inlined workload, 4 ranks",
        "  well-formed  yes",
        "  terminates   yes",
        "  correct      yes",
        "  race-free    yes",
    ]
    code, out, _ = run(capsys, tmp_path / "layer.yaml", "--set", "workload.1.compute.tiles=2")
    assert code == 0 and out.startswith(f"{tmp_path / 'layer.yaml'}: inlined workload, 4 ranks\n")
    code, _, err = run(capsys, step, "--set", "name=x")
    assert code == 2 and "--set: is for scenarios" in err
    code, _, err = run(capsys, step, "--slots", 2)
    assert code == 2 and "--slots: is for algorithms, and this is a workload" in err
    trace = read_trace(tmp_path / "step.2.et")
    tile = trace.column("consumes_tile").copy()
    own = int(np.flatnonzero(tile == 2)[0])  # its own rows, for which it waits for nothing
    tile[own] = 1
    write_prefix(
        tmp_path / "edited",
        [
            *(read_trace(tmp_path / f"step.{r}.et") for r in (0, 1)),
            trace.replace(consumes_tile=tile),
            read_trace(tmp_path / "step.3.et"),
        ],
    )
    code, out, _ = run(capsys, tmp_path / "edited")
    assert code == 1 and "  race-free    NO       1 pair of steps races" in out
    node = f"rank 2 node {int(trace.node_id[own])}"
    assert f"problem: race: {node} (consumes_tile 1 of 4 of all_gather, call 0) reads output chunk 1" in out
    code, out, _ = run(capsys, tmp_path / "edited", "--format", "json")
    row = json.loads(out)
    assert set(KEYS) == set(row) and row["collective"] == "inlined workload" and row["counterexample"]["rank"] == 2


@pytest.mark.parametrize("adds", ["nobody", "one", "both"])
def test_orders_of_addition_are_those_of_right_sums(capsys, tmp_path, adds):
    """Ranks that hold different chunks, or wrong sums, have not added in different orders: they are wrong."""
    gpus = []
    for rank in range(3):
        after, before = (rank + 1) % 3, (rank - 1) % 3
        last = "re" if adds == "both" or (adds == "one" and not rank) else "cpy"
        blocks = [
            (after, before, [step(0, "s", I, S), step(1, "r", I, S, has=1)]),
            (-1, -1, [step(0, last, S, I, dep=(0, 1))]),
        ]
        gpus.append(blocks)
    path = tmp_path / "wrong.xml"
    path.write_text(program(gpus))
    code, out, _ = run(capsys, path)
    assert code == 1 and "wrong" in out and "different orders" not in out


def test_right_sums_in_different_orders_are_told(capsys, tmp_path):
    """Each of three ranks begins with its own chunk: (a + b) + c is not (b + c) + a to the last bit."""
    gpus = []
    for rank in range(3):
        peers = [(rank + 1) % 3, (rank + 2) % 3]
        sends = [(peer, -1, [step(0, "s", I, S, has=1)]) for peer in peers]
        takes = [(-1, peer, [step(0, "r", I, ("s", k), has=1)]) for k, peer in enumerate(peers)]
        waits = [step(k, "nop", I, I, dep=(k, 0), cnt=0) for k in range(2)]
        adds = [step(2 + k, "re", ("s", k), I, dep=(2 + k, 0)) for k in range(2)]
        gpus.append([*sends, *takes, (-1, -1, [*waits, *adds])])
    path = tmp_path / "orders.xml"
    path.write_text(program(gpus).replace('s_chunks="1"', 's_chunks="2"'))
    code, out, _ = run(capsys, path)
    assert code == 0 and "ranks add in different orders (chunk 0 on ranks 0 and 1)" in out
