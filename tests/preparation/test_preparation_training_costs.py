"""Software and state of the machine of a training: their keys, what nccl-tests tell, and what is refused."""

import base64
import gzip
import json
import re

import pytest

from astrasim_py.cli.main import main
from astrasim_py.collectives.collective import busbw_factor
from astrasim_py.core.errors import AstraError
from astrasim_py.preparation.prepare import estimate, prepare
from astrasim_py.scenario.expand import expand
from astrasim_py.scenario.load import load_scenario
from astrasim_py.training.software import software_names

MIB = 2**20
SCENARIO = """
topologies: {{m: {{preset: {machine}, nodes: 2}}}}
compute: {{preset: {machine}}}
workload:
  training: {{model: llama3-8b, seq: 2048, gbs: 32, tp: 4, zero: 1, recompute: full}}
  {more}
"""


def printed_test(
    test="all_gather", ranks=8, nodes=1, gb_s=331.0, sizes=(8 * MIB, 1024 * MIB), gpu="NVIDIA H100 80GB HBM3"
):
    """What nccl-tests print of a test with one bus bandwidth at all sizes."""
    factor = float(busbw_factor(test, ranks) or 1)
    each = ranks // nodes
    lines = [f"# Collective test starting: {test}_perf", "# nThread 1 nGpus 8 minBytes 8388608 maxBytes 1073741824"]
    for rank in range(ranks):
        device = f"device {rank % each} [0000:18:00] {gpu}"
        lines.append(f"#  Rank {rank} Group 0 Pid {4000 + rank} on node{rank // each} {device}")
    places = "   time   algbw   busbw #wrong"
    lines += ["#  out-of-place  in-place", f"#  size  count  type  redop  root {places} {places}"]
    for size in sizes:
        us = size * factor / gb_s / 1000
        cells = f"{us:.3f}  {size / us / 1000:.2f}  {gb_s:.2f}  0"
        lines.append(f"{size}  {size // 4}  float  none  -1  {cells}  {cells}")
    return "\n".join([*lines, "# Out of bounds values : 0 OK", "# Avg bus bandwidth    : 100.0", ""])


def costs_of(folder, more="", machine="dgx_h100", **files):
    """Software, state and its source, and the step, of a scenario beside some files."""
    for name, text in files.items():
        (folder / f"{name}.txt").write_text(text)
    (folder / "s.yaml").write_text(SCENARIO.format(machine=machine, more=more))
    return estimate(expand(load_scenario(folder / "s.yaml"))[0])


def refusal(folder, *args, **files) -> str:
    with pytest.raises(AstraError) as caught:
        costs_of(folder, *args, **files)
    return str(caught.value)


def test_software_is_pytorch_on_a_sound_machine_unless_keys_say_otherwise(tmp_path):
    plain = costs_of(tmp_path)
    assert (plain["software"], plain["state"], plain["state_source"]) == ("pytorch", "sound", "default")
    written = costs_of(tmp_path, "software: nanotron\n  state: degraded")
    assert (written["software"], written["state"], written["state_source"]) == ("nanotron", "degraded", "as written")
    assert written["step_s"] > costs_of(tmp_path, "software: nanotron")["step_s"] != plain["step_s"]
    ideal = costs_of(tmp_path, "software: ideal")
    assert (ideal["software"], ideal["state"], ideal["state_source"]) == ("ideal", None, None)
    assert ideal["step_s"] < plain["step_s"]
    unlisted = costs_of(tmp_path, machine="dgx_a100")
    assert (unlisted["state"], unlisted["state_source"]) == ("sound", "default")


@pytest.mark.parametrize(("gb_s", "state"), [(249.0, "degraded"), (251.0, "sound")])
def test_an_all_gather_in_a_node_tells_the_state(tmp_path, gb_s, state):
    measured = costs_of(tmp_path, "state: {nccl_tests: t.txt}", t=printed_test(gb_s=gb_s))
    assert measured["state"] == state
    assert measured["state_source"] == f"t.txt: all_gather of 1 GiB in a node {gb_s:g} GB/s"
    assert measured["step_s"] == costs_of(tmp_path, f"state: {state}")["step_s"]


def test_the_largest_size_counts(tmp_path):
    small, large = printed_test(gb_s=100.0, sizes=(64 * MIB,)), printed_test(gb_s=300.0, sizes=(128 * MIB,))
    assert costs_of(tmp_path, "state: {nccl_tests: t.txt}", t=small + large)["state"] == "sound"


def test_an_all_gather_over_the_nodes_tells_how_much_slower_gradients_are(tmp_path):
    node = printed_test(gb_s=241.0)
    alone = costs_of(tmp_path, "software: nanotron\n  state: {nccl_tests: n.txt}", n=node)
    files = {"n": node, "f": printed_test(ranks=16, nodes=2, gb_s=20.0)}
    slow = costs_of(tmp_path, "software: nanotron\n  state: {nccl_tests: [n.txt, f.txt]}", **files)
    assert slow["step_s"] > alone["step_s"] and slow["state"] == alone["state"]
    assert slow["state_source"].startswith("n.txt, f.txt: ")
    assert slow["state_source"].endswith("in a node 241 GB/s, over 2 nodes 20 GB/s")


def test_a_test_over_other_nodes_is_said_to_be_left_out(tmp_path, capsys):
    text = printed_test() + printed_test(ranks=32, nodes=4, gb_s=20.0)
    keys = costs_of(tmp_path, "state: {nccl_tests: t.txt}", t=text)
    assert keys["step_s"] == costs_of(tmp_path)["step_s"]
    train = ["train", "llama2-7b", "--gpus", "16", "--tp", "8", "--gbs", "32", "--explain"]
    assert main([*train, "--state", str(tmp_path / "t.txt")]) == 0
    said = capsys.readouterr().err
    assert "measured over 4 nodes, and the machine has 2" in said and len(said.splitlines()) == 1


def test_json_of_nccl_tests_is_read_as_well(tmp_path):
    time = {"time": 3500.0, "alg_bw": 306.78, "bus_bw": 268.44, "nwrong": "0"}
    entries = [{"rank": rank, "group": 0, "pid": 1, "hostname": "a", "device_info": "H100"} for rank in range(8)]
    result = {"size": 1024 * MIB, "type": "float", "redop": "none", "out_of_place": time, "in_place": time}
    document = {"args": ["all_gather_perf"], "config": {"devices": entries}, "results": [result]}
    keys = costs_of(tmp_path, "state: {nccl_tests: t.txt}", t=json.dumps(document))
    assert keys["state"] == "sound" and keys["state_source"].endswith("268.4 GB/s")


CALL = "run all_gather_perf -b 8M -e 1G -f 2 -g 8 on a node"


@pytest.mark.parametrize(
    ("text", "problem"),
    [
        ("", "t.txt:1: is empty"),
        ("hello\n", "t.txt:1: has neither the columns of measured times nor the output of nccl-tests"),
        (printed_test("all_reduce"), "t.txt: holds no all_gather, only all_reduce"),
        (printed_test(ranks=4), "t.txt: holds an all_gather of 4 GPUs, and a node has 8"),
        (printed_test(ranks=16, nodes=2), "t.txt: holds no all_gather inside a node, only over 2 nodes"),
        (printed_test(sizes=(8 * MIB,)), "t.txt: its largest all_gather has 8 MiB, whose time is mostly latency"),
    ],
)
def test_what_tells_no_state_is_refused_with_the_call_to_run(tmp_path, text, problem):
    line = refusal(tmp_path, "state: {nccl_tests: t.txt}", t=text)
    assert "workload.state: " in line and problem in line and CALL in line and "\n" not in line


@pytest.mark.parametrize(
    ("more", "machine", "line"),
    [
        ("software: pytoch", "dgx_h100", '"pytoch" is no software that is known; did you mean "pytorch"?'),
        ("software: {gem: 1.1}", "dgx_h100", 'software.gem: is not a key here; did you mean "gemm"?'),
        ("software: {base: megatron}", "dgx_h100", "changes no constant; write software: megatron"),
        ("state: bad", "dgx_h100", '"bad" is no state of a machine; write sound, degraded, or {nccl_tests: FILE}'),
        ("state: degraded", "dgx_a100", 'no state "degraded" of dgx_a100 is known; write sound; degraded is'),
        ("state: {nccl_tests: t.txt}", "dgx_a100", "of dgx_a100 no state but sound is known"),
        ("state: {nccl_tests: []}", "dgx_h100", "no file is named; write e.g. nccl_tests: all_gather.txt"),
        ("state: {nccl_tests: gone.txt}", "dgx_h100", "gone.txt"),
        ("state: {nccl_tests: t.txt}", "dgx_h200", "of dgx_h200 no state"),
        ("times: roofline\n  state: sound", "dgx_h100", "state changes nothing by the roofline"),
        ("times: roofline\n  software: ideal", "dgx_h100", "software changes nothing by the roofline"),
    ],
)  # fmt: skip
def test_keys_that_are_wrong_or_change_nothing_are_refused(tmp_path, more, machine, line):
    shown = refusal(tmp_path, more, machine, t=printed_test())
    assert line in shown and "workload" in shown and "\n" not in shown


def test_a_test_of_another_machine_is_refused(tmp_path):
    text = printed_test(gpu="NVIDIA A100-SXM4-80GB")
    line = refusal(tmp_path, "state: {nccl_tests: t.txt}", t=text)
    assert "t.txt is of A100-SXM, and the machine is dgx_h100" in line


def test_a_state_of_ideal_software_is_said_to_change_nothing(capsys):
    train = ["train", "llama2-7b", "--gpus", "8", "--tp", "8", "--gbs", "8", "--software", "ideal", "--explain"]
    assert main([*train, "--state", "degraded"]) == 0
    printed = capsys.readouterr()
    assert "state changes nothing for software: ideal" in printed.err
    assert printed.out.splitlines()[1] == "software ideal"


@pytest.mark.parametrize("name", software_names())
def test_every_software_runs(tmp_path, name):
    assert costs_of(tmp_path, f"software: {name}")["software"] == name


def test_constants_of_software_may_be_changed(tmp_path):
    slower = costs_of(tmp_path, "software: {base: megatron, gemm: 1.5}")
    assert slower["software"] == "megatron with gemm 1.5" and slower["state"] == "sound"
    assert slower["step_s"] > costs_of(tmp_path, "software: megatron")["step_s"]


def test_results_say_what_their_times_hold_for(tmp_path, capsys):
    (tmp_path / "t.yaml").write_text(
        """
topologies: {m: {preset: dgx_h100, nodes: 1}}
compute: {preset: dgx_h100}
workload:
  training: {model: {base: llama3-8b, layers: 2}, seq: 512, gbs: 8, tp: 8}
  software: $software
  state: sound
sweep: {software: [ideal, nanotron]}
"""
    )
    out = ["--out", str(tmp_path)]
    assert main(["run", str(tmp_path / "t.yaml"), "--jobs", "1", *out]) == 0
    printed = capsys.readouterr()
    lines = printed.out.splitlines()
    assert "software ideal" in lines and "software nanotron, state sound (as written)" in lines
    assert printed.out.count("state changes nothing for software: ideal") == 1
    assert main(["results", "list", "t", "--json", *out]) == 0
    ideal, other = (row["trainings"] for row in json.loads(capsys.readouterr().out))
    assert ideal == [{"software": "ideal", "state": None, "state_source": None}]
    assert other == [{"software": "nanotron", "state": "sound", "state_source": "as written"}]
    assert main(["explain", "t@software=nanotron", *out]) == 0
    assert "software nanotron, state sound (as written)" in capsys.readouterr().out.splitlines()
    page = tmp_path / "page.html"
    assert main(["view", "t@software=nanotron", "-o", str(page), *out]) == 0
    packed = re.findall(r'<script type="text/plain" class="run">([^<]*)</script>', page.read_text("utf-8"))
    runs = [json.loads(gzip.decompress(base64.b64decode(text))) for text in packed]
    assert [run["trainings"] for run in runs] == [["software nanotron, state sound (as written)"]]


@pytest.mark.parametrize(("machine", "gpus"), [("dgx_h100", 1), ("dgx_h100", 8), ("tpu_v5p", 8), ("mi300x", 8)])
def test_any_machine_has_a_step(machine, gpus, capsys):
    """Also one NPU, which sends nothing."""
    train = ["train", "{base: llama3-8b, layers: 2}", "--seq", "512", "--gbs", "8", "--tp", str(gpus), "--json"]
    assert main([*train, "--on", machine, "--gpus", str(gpus), "--explain"]) == 0
    terms = json.loads(capsys.readouterr().out)
    assert terms["state"] == "sound" and sum(terms["parts_s"].values()) == pytest.approx(terms["step_s"])
    assert (terms["parts_s"]["tp"] > 0) == (gpus > 1)


@pytest.mark.parametrize("overlap", ["false", "true"])
def test_traces_are_kept_for_other_algorithms_unless_overlap_hangs_on_them(tmp_path, overlap):
    (tmp_path / "t.yaml").write_text(
        f"""
topologies: {{m: {{preset: dgx_h100, nodes: 2}}}}
compute: {{preset: dgx_h100}}
workload:
  training: {{model: {{base: llama3-8b, layers: 2}}, seq: 512, gbs: 64, mbs: 4, zero: 1, overlap: {{dp: {overlap}}}}}
algorithms: {{all_gather: $rings, reduce_scatter: $rings}}
sweep: {{rings: [ring, hierarchical]}}
"""
    )
    first, second = (prepare(point).problem.jobs[0].workload for point in expand(load_scenario(tmp_path / "t.yaml")))
    assert (first is second) == (overlap == "false")
