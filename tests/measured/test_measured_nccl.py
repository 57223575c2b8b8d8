"""Output of nccl-tests in all its forms: options, groups, launchers, several processes and runs, JSON."""

import json
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.core.errors import UsageError
from astrasim_py.measured.rows import read_rows

FACTORS = {"all_reduce": lambda n: 2 * (n - 1) / n, "all_gather": lambda n: (n - 1) / n, "sendrecv": lambda n: 1}
SIZES = {2**20: 17.1, 2**24: 93.56, 2**28: 1316.89}
LEAD = "# {:>10}  {:>12}  {:>8}  {:>6}  {:>6}"


def device(rank, group=0, pid=None, host=None, per_host=8):
    host = f"node{rank // per_host}" if host is None else host
    pid = 4000 + rank if pid is None else pid
    gpu = "NVIDIA H100 80GB HBM3"
    return f"#  Rank {rank:2d} Group {group:2d} Pid {pid:6d} on {host:>10} device {rank % 8:2d} [0000:18:00] {gpu}"


def log(test="all_reduce", ranks=8, devices=None, columns=(), stamp="", time="time", factor=None, places=2, end=True):
    """Lines that a run prints. `columns`: further names and values of each place; `stamp`: at the end of a row."""
    factor = FACTORS[test](ranks) if factor is None else factor
    devices = [device(rank) for rank in range(ranks)] if devices is None else devices
    more = "".join(f"  {name:>7}" for name, _ in columns)
    block = f"  {time:>7}   algbw   busbw  #wrong{more}"
    lines = [
        "# nccl-tests version 2.17.8 nccl-headers=22809 nccl-library=22809",
        f"# Collective test starting: {test}_perf",
        "# nThread 1 nGpus 8 minBytes 1048576 maxBytes 268435456 step: 4(factor) warmup iters: 1 iters: 20",
        "#",
        "# Using devices",
        *devices,
        "#",
        LEAD.format("", "", "", "", "") + "           out-of-place" * (places > 1) + "                       in-place",
        LEAD.format("size", "count", "type", "redop", "root") + block * places + ("  timestamp" if stamp else ""),
        LEAD.format("(B)", "(elements)", "", "", "") + "     (us)  (GB/s)  (GB/s)        " * places,
    ]
    for size, base in SIZES.items():
        cells = ""
        for place in range(2 - places, 2):
            us = base * (1 + 0.01 * place)
            alg = size / us / 1000
            values = "".join(f"  {value:>7}" for _, value in columns)
            cells += f"  {us:7.2f}  {alg:6.2f}  {alg * factor:6.2f}  {0:6d}{values}"
        lines.append(f"{size:12d}  {size // 4:12d}  {'float':>8}  {'sum':>6}  {-1:6d}{cells}{stamp}")
    tail = [
        "# Out of bounds values : 0 OK",
        "# Avg bus bandwidth    : 100.0",
        "#",
        f"# Collective test concluded: {test}_perf",
    ]
    return lines + tail * end


def rows_of(folder, lines, name="out.txt"):
    path = folder / name
    path.write_text(lines if isinstance(lines, str) else "\n".join(lines) + "\n", "utf-8")
    warnings = []
    return read_rows([path], warnings), warnings


def facts(rows):
    return [(row.bytes, row.time_ps, row.in_place) for row in rows]


WANTED = [
    (size, round(us * (1 + 0.01 * place), 2) * 10**6, str(place)) for size, us in SIZES.items() for place in (0, 1)
]
PER_ITERATION = (("i_min", "16.90"), ("i_max", "18.00"), ("i_p99", "17.90"), ("i_cv%", "1.53"))


@pytest.mark.parametrize(
    "how",
    [
        {"stamp": "  2026-07-09 12:34:56"},
        {"columns": PER_ITERATION},
        {"columns": PER_ITERATION, "stamp": "  2026-07-09 12:34:56"},
        {"columns": (("algo", "RING"), ("proto", "LL128"), ("nchannels", "24"))},
    ],
)
def test_columns_are_read_by_their_names(tmp_path, how):
    rows, warnings = rows_of(tmp_path, log(**how))
    assert facts(rows) == WANTED
    assert {(row.ranks, row.nodes, row.collective) for row in rows} == {(8, 1, "all_reduce")} and not warnings


def test_one_place_and_a_blank_one(tmp_path):
    rows, _ = rows_of(tmp_path, log(places=1))
    assert facts(rows) == [row for row in WANTED if row[2] == "1"]
    blank = [re.sub(r"(sum +-1).{34}", r"\1" + " " * 34, line) for line in log()]
    rows, _ = rows_of(tmp_path, blank)
    assert facts(rows) == [row for row in WANTED if row[2] == "1"]


def test_times_of_the_cpu_are_none_of_the_collective(tmp_path):
    with pytest.raises(UsageError, match=r"out.txt:18: the times are those of the CPU \(-C\)"):
        rows_of(tmp_path, log(time="cputime"))


@pytest.mark.parametrize(("of", "count"), [(lambda rank: rank // 8, (8, 1)), (lambda rank: rank % 8, (2, 2))])
def test_a_call_has_the_ranks_of_its_group(tmp_path, of, count):
    lines = log(ranks=count[0], devices=[device(rank, of(rank)) for rank in range(16)])
    rows, warnings = rows_of(tmp_path, lines)
    assert {(row.ranks, row.nodes) for row in rows} == {count}
    assert len(warnings) == 1 and "groups call at once (NCCL_TESTS_SPLIT)" in warnings[0]


@pytest.mark.parametrize("gpus", [1, 4])
def test_processes_without_mpi_each_ran_alone(tmp_path, gpus):
    devices = [device(rank, 0, 4000 + host, f"node{host}") for rank in range(gpus) for host in range(2)]
    rows, warnings = rows_of(tmp_path, log(ranks=gpus, devices=devices))
    assert {(row.ranks, row.nodes) for row in rows} == {(gpus, 1)}
    assert len(warnings) == 1 and "without MPI" in warnings[0]


@pytest.mark.parametrize(("test", "ranks", "said"), [("all_reduce", 16, 8), ("all_gather", 2, 4), ("all_reduce", 8, 1)])
def test_bandwidths_that_contradict_the_ranks_are_said(tmp_path, test, ranks, said):
    lines = log(test, ranks, factor=FACTORS[test](said))
    with pytest.raises(UsageError, match=rf"out.txt:\d+: busbw / algbw is that of {said} rank.*lists {ranks} ranks"):
        rows_of(tmp_path, lines)
    rows, warnings = rows_of(tmp_path, [*lines, *log(test, ranks)])
    assert len(rows) == 6 and len(warnings) == 1 and "(6 left out)" in warnings[0]


@pytest.mark.parametrize(("test", "factor"), [("all_gather", 1.75), ("all_gather", 1), ("all_reduce", 0.5)])
def test_bandwidths_of_another_collective_are_said(tmp_path, test, factor):
    with pytest.raises(UsageError, match=f"busbw / algbw is that of no {test}, whatever the number of ranks"):
        rows_of(tmp_path, log(test, factor=factor))


@pytest.mark.parametrize("bad", ["-17.10", "17,10", "1" + "0" * 20, "17.1us"])
def test_a_time_that_is_no_number_is_left_out_and_said(tmp_path, bad):
    rows, warnings = rows_of(tmp_path, "\n".join(log()).replace("  17.10", f"  {bad}"))
    assert len(rows) == 5 and f'the time "{bad[:32]}" is no number' in warnings[0]


def test_columns_of_a_place_are_read_by_their_names_in_any_order(tmp_path):
    lines = log(columns=[("p99", 9.9)])
    heading = next(number for number, line in enumerate(lines) if " size " in line)
    words = [line.split() for line in lines]
    for number, line in enumerate(lines):
        if number == heading or line.lstrip()[:1].isdigit():
            lead = words[number][: 5 + (number == heading)]
            cells = words[number][len(lead) :]
            lines[number] = " ".join([*lead, *cells[4::-1], *cells[:4:-1]])
    rows, warnings = rows_of(tmp_path, lines)
    assert not warnings
    assert sorted(row.time_ps for row in rows) == sorted(row.time_ps for row in rows_of(tmp_path, log())[0])


def test_single_rows_that_do_not_fit_are_left_out(tmp_path):
    text = "\n".join(log())
    rows, warnings = rows_of(tmp_path, text.replace("  313.8", "  213.8"))
    assert len(rows) == 5 and "busbw / algbw is not that of 8 ranks" in warnings[0]
    rows, warnings = rows_of(tmp_path, text.replace("  93.56", " 193.56"))
    assert len(rows) == 5 and "algbw is not size / time" in warnings[0]
    assert len(rows_of(tmp_path, log("sendrecv", 2))[0]) == 6


def test_early_versions_put_the_factor_into_algbw(tmp_path):
    lines = log("all_gather")
    for size, us in SIZES.items():
        for place in (0, 1):
            alg = size / (us * (1 + 0.01 * place)) / 1000
            lines = [
                line.replace(f"{alg:6.2f}  {alg * 0.875:6.2f}", f"{alg * 0.875:6.2f}  {alg * 0.875:6.2f}")
                for line in lines
            ]
    rows, warnings = rows_of(tmp_path, lines)
    assert facts(rows) == WANTED and not warnings


LABELS = {
    "srun -l": " 0: {}",
    "label of Intel MPI": "[0] {}",
    "mpirun --tag-output": "[1,0]<stdout>:{}",
    "mpirun --tag-output --timestamp-output": "Thu Jul  9 12:34:{second} 2026[1,0]<stdout>:{}",
    "prterun": "[prterun-host-9@1,0]<stdout>: {}",
    "kubectl --timestamps": "2026-07-09T12:34:{second}.123456789Z {}",
    "kubectl --prefix": "[pod/nccl-launcher-x7k2/launcher] {}",
    "docker compose": "nccl-1  | {}",
    "pdsh": "node0: {}",
    "syslog": "Jul  9 12:34:{second} node0 nccl[4242]: {}",
    "log of Python": "2026-07-09 12:34:{second},123 INFO {}",
    "ts": "[2026-07-09 12:34:{second}] {}",
    "ansible": '        "{}",',
    "colours": "\x1b[32m{}\x1b[0m",
    "CRLF": "{}\r",
}


@pytest.mark.parametrize("label", LABELS.values(), ids=LABELS)
def test_labels_of_launchers_do_not_matter(tmp_path, label):
    labelled = [label.replace("{}", line).format(second=10 + n % 50) for n, line in enumerate(log())]
    rows, warnings = rows_of(tmp_path, labelled)
    assert facts(rows) == WANTED and not warnings
    assert {(row.ranks, row.nodes, row.platform) for row in rows} == {(8, 1, "H100-SXM")}


def test_outputs_of_several_processes_are_kept_apart_by_their_labels(tmp_path):
    both = zip(log(ranks=2, devices=[device(0), device(1)]), log("all_gather", 2, [device(0), device(1)]), strict=True)
    both = [*both]
    for label in ("{}: ", "node-200{}: ", "10.0.0.{}: ", "[1,{}]<stdout>:"):
        rows, warnings = rows_of(tmp_path, [label.format(n) + line for pair in both for n, line in enumerate(pair)])
        assert len(rows) == 12 and not warnings
    assert sorted(row.collective for row in rows) == ["all_gather"] * 6 + ["all_reduce"] * 6 and not warnings
    one, other = (log(ranks=1, devices=[device(0, 0, pid, f"node{pid}")]) for pid in (1, 2))
    rows, warnings = rows_of(tmp_path, [line for pair in zip(one, other, strict=True) for line in pair])
    assert len(rows) == 12 and {row.ranks for row in rows} == {1}
    assert len(warnings) == 1 and "without MPI" in warnings[0]


def test_runs_in_one_file_are_read_and_failed_ones_counted(tmp_path):
    crashed = [*log()[:14], "node0:4000:4021 [0] misc/socket.cc:51 NCCL WARN socketProgress: Connection closed"]
    crashed.append("node0: Test NCCL failure common.cu:958 'remote process exited' / ")
    rows, warnings = rows_of(tmp_path, [*log("all_gather"), *log(end=False), *crashed, *log()])
    assert [row.collective for row in rows] == ["all_gather"] * 6 + ["all_reduce"] * 6
    assert any("2 warnings or failures of NCCL, the first: socketProgress" in text for text in warnings)
    assert any("ends in the middle" in text for text in warnings)


def test_a_row_into_which_nccl_printed_is_put_together(tmp_path):
    lines = log()
    at = next(n for n, line in enumerate(lines) if " 16777216 " in line)
    cut = lines[at].index("93.56")
    info = "node0:4000:4021 [0] NCCL INFO Channel 00/0 : 0[0] -> 1[1] via P2P/CUMEM"
    broken = [*lines[:at], lines[at][:cut].rstrip() + info, info, "    " + lines[at][cut:], *lines[at + 1 :]]
    rows, warnings = rows_of(tmp_path, broken)
    assert facts(rows) == WANTED and not warnings
    del broken[at + 2]
    rows, warnings = rows_of(tmp_path, broken)
    assert len(rows) == 4 and len(warnings) == 1 and f"out.txt:{at + 1}: a row of nccl-tests is cut" in warnings[0]


DAMAGE = st.lists(st.tuples(st.sampled_from(["drop", "double", "cut", "swap"]), st.integers(0, 99), st.integers(0, 99)))


@given(DAMAGE, st.sampled_from([*LABELS.values(), "{}"]))
def test_damage_never_makes_up_a_time_or_a_number_of_ranks(tmp_path_factory, damage, label):
    lines = log()
    for what, at, other in damage:
        at, other = at % len(lines), other % len(lines)
        if what == "swap":
            lines[at], lines[other] = lines[other], lines[at]
        elif what == "cut":
            lines[at] = lines[at][: len(lines[at]) * other // len(lines)]
        else:
            lines[at : at + 1] = [] if what == "drop" and len(lines) > 1 else [lines[at]] * 2
    try:
        rows, _ = rows_of(
            tmp_path_factory.mktemp("damaged"), [label.replace("{}", line).format(second=10) for line in lines]
        )
    except UsageError as error:
        assert "\n" not in str(error)
    else:
        assert {*facts(rows)} <= {*WANTED} and {row.ranks for row in rows} == {8}


def test_what_is_no_output_is_no_table_either(tmp_path):
    for text in ("mpirun was unable to launch the application\n", "job 17 ended\nplatform: H100\n"):
        with pytest.raises(UsageError, match=r"out.txt:1: has neither the columns .* nor the output of nccl-tests"):
            rows_of(tmp_path, text)
    with pytest.raises(UsageError, match="there is no time in the output of nccl-tests"):
        rows_of(tmp_path, [*log()[:3], "node0: Test NCCL failure common.cu:958 'unhandled system error'"])
    bare = [line for line in log() if not line.startswith("#")]
    with pytest.raises(UsageError, match='no heading "size count type'):
        rows_of(tmp_path, [*log()[:3], *bare])


def document(ranks=8, **more):
    def times(size, us):
        return {"time": us, "alg_bw": size / us / 1000, "bus_bw": size / us * 0.00175, "nwrong": 0.0}

    results = [
        {
            "size": size,
            "type": "float",
            "redop": "sum",
            "out_of_place": times(size, us),
            "in_place": times(size, 1.01 * us),
        }
        for size, us in SIZES.items()
    ]
    gpu = {"group": 0, "pid": 7, "hostname": "node0", "device_info": "NVIDIA H100 80GB HBM3"}
    config = {"nthreads": 1, "ngpus": 1, "devices": [gpu | {"rank": rank} for rank in range(ranks)]}
    start = {"version": 2, "args": ["./build/all_reduce_perf", "-J", "out.json"], "nccl_version": 22809}
    return (
        start
        | {"config": config, "results": results, "out_of_bounds": {"count": 0, "okay": "true"}, "errors": []}
        | more
    )


def test_json_is_read_as_the_text_is(tmp_path):
    rows, warnings = rows_of(tmp_path, json.dumps(document()), "out.json")
    assert [(row.bytes, row.in_place) for row in rows] == [row[::2] for row in WANTED] and not warnings
    assert {(r.ranks, r.nodes, r.collective, r.platform, r.version) for r in rows} == {
        (8, 1, "all_reduce", "H100-SXM", "2.28.9")
    }
    for several in (
        json.dumps([document(), document()]),
        f"{json.dumps(document(), indent=1)}\n{json.dumps(document())}\n",
    ):
        assert len(rows_of(tmp_path, several, "two.json")[0]) == 12


def test_json_lists_one_device_of_a_process_with_several(tmp_path):
    one = document(ranks=1)
    one["config"]["ngpus"] = 8
    rows, warnings = rows_of(tmp_path, json.dumps(one), "out.json")
    assert {(row.ranks, row.nodes) for row in rows} == {(8, 1)} and not warnings


def test_json_of_no_gpu_a_process_is_read_as_of_one(tmp_path):
    one = document()
    one["config"]["ngpus"] = 0
    assert rows_of(tmp_path, json.dumps(one), "x.json") == rows_of(tmp_path, json.dumps(document()), "x.json")


def test_json_without_devices_has_the_ranks_of_its_bandwidths(tmp_path):
    rows, warnings = rows_of(tmp_path, json.dumps(document(config=None, args=None)), "x.json")
    assert {(row.ranks, row.collective) for row in rows} == {(8, "all_reduce")}
    assert len(warnings) == 2 and "lists no devices: 8 ranks, taken as one node" in warnings[1]


def test_json_that_says_less_is_told_of(tmp_path):
    wrong = document()
    wrong["results"][1]["out_of_place"]["nwrong"] = 3.0
    wrong["results"][2]["in_place"] = None
    rows, warnings = rows_of(tmp_path, json.dumps(wrong | {"out_of_bounds": {"count": 1, "okay": "false"}}), "x.json")
    assert len(rows) == 4 and len(warnings) == 2
    for one in wrong["results"]:
        one["out_of_place"] = {"cpu_time" if key == "time" else key: v for key, v in one["out_of_place"].items()}
    with pytest.raises(UsageError, match=r"x.json:1: results\[0\]: the times are those of the CPU"):
        rows_of(tmp_path, json.dumps(wrong), "x.json")
    for text, said in (
        (json.dumps(document())[:-40], "no whole JSON"),
        ('{"results": 1}', "no list of objects"),
        ('[{"a": 1}]', "no row of rccl-tests"),
    ):
        with pytest.raises(UsageError, match=rf"x.json:1: .*{said}"):
            rows_of(tmp_path, text, "x.json")


VALUES = st.recursive(
    st.none()
    | st.booleans()
    | st.integers(-(2**70), 2**70)
    | st.sampled_from([1e300, "1e999", "nan", "8", "²", "all_gather_perf", "0"]),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.sampled_from(["rank", "size", "time"]), inner, max_size=2)
    ),
    max_leaves=4,
)


@given(st.lists(st.tuples(st.lists(st.integers(0, 40), min_size=1, max_size=4), VALUES), max_size=5), st.booleans())
def test_no_value_in_json_can_break_the_reading(tmp_path_factory, changes, rccl):
    one = json.loads(json.dumps(document()))
    row = {"name": "AllGather", "nodes": 1, "ranks": 8, "type": "float", "size": 64, "inPlace": 0, "time": 9.5}
    content = [row, dict(row)] if rccl else one
    for path, value in changes:
        inner, place = content, None
        for step in path:
            keys = sorted(inner) if isinstance(inner, dict) else range(len(inner)) if isinstance(inner, list) else ()
            if keys:
                outer, place = inner, keys[step % len(keys)]
                inner = outer[place]
        if place is not None:
            outer[place] = value
    try:
        rows_of(tmp_path_factory.mktemp("json"), json.dumps(content), "all_reduce.json")
    except UsageError as error:
        assert "\n" not in str(error)


@pytest.mark.parametrize("form", ["json", "csv"])
@pytest.mark.parametrize(("mpi", "count"), [({"nodes": 2, "ranks": 16}, (16, 2)), ({"gpus": 16}, (16, 1))])
def test_files_of_rccl_tests_are_read(tmp_path, form, mpi, count):
    rows = []
    for size, us in SIZES.items():
        for place in (0, 1):
            call = {"numCycle": 0, "name": "AllReduce", **mpi, "size": size, "type": "float", "redop": "sum"}
            measured = {"time": us, "algBw": size / us / 1000, "busBw": size / us * 0.001875, "wrong": "N/A"}
            rows.append(call | {"inPlace": place} | measured)
    keys = {"name": "collective", "inPlace": "inplace", "algBw": "algbw", "busBw": "busbw", "wrong": "#wrong"}
    table = [[keys.get(key, key) for key in rows[0]], *(map(str, row.values()) for row in rows)]
    text = json.dumps(rows) if form == "json" else "\n".join(map(",".join, table)) + "\n"
    found, warnings = rows_of(tmp_path, text, "out")
    assert {(r.ranks, r.nodes, r.library, r.collective) for r in found} == {(*count, "RCCL", "all_reduce")}
    assert facts(found) == [(size, round(us * 10**6), place) for size, us in SIZES.items() for place in "01"]
    assert not warnings


def test_the_reported_files(golden):
    wanted = {"03": (10, 8, 1), "04": (10, 1, 1), "05": (10, 8, 1), "06": (10, 8, 1)}
    for path in sorted((golden / "reports").glob("0[3-6]-nccl*/*.*")):
        if "cputime" in path.name:
            with pytest.raises(UsageError, match="those of the CPU"):
                read_rows([path])
        else:
            rows = read_rows([path], [])
            count, ranks, nodes = wanted[path.parent.name[:2]]
            assert len(rows) == (1 if path.suffix == ".json" else count), path
            assert {(row.ranks, row.nodes) for row in rows} == {(ranks, nodes)}
