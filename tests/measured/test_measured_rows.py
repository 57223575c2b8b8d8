"""Measured times: CSV and the output of nccl-tests, and what bad ones are told."""

import csv
from pathlib import Path

import pytest

from astrasim_py.core.errors import UsageError
from astrasim_py.measured.rows import REQUIRED, chooser, mean_of_repeats, read_rows

GOOD = {
    "platform": "H100-SXM", "library": "NCCL", "version": "2.29.2", "collective": "all_reduce", "dtype": "half",
    "ranks": "8", "nodes": "1", "bytes": "1024", "time_us": "12.5",
}  # fmt: skip
BAD = {
    "time_us": (("0", "-3.1", "nan", "fast", "12 us", "1e40"), "no time"),
    "bytes": (("0", "64 KiB", "1.5", "-8"), "no count"),
    "ranks": (("0", "eight", "9999999999"), "no count"),
    "nodes": (("3",), "no equal parts"),
    "platform": (("",), "is empty"),
}
DEVICES = "".join(
    f"#  Rank  {rank} Group  0 Pid  14 on host{rank // 4} device  {rank % 4} [0000:0{rank}:00] NVIDIA H100 80GB HBM3\n"
    for rank in range(8)
)
START = "# nThread 1 nGpus 8 minBytes 512 maxBytes 2048 step: 4(factor) warmup iters: 1 iters: 20\n#\n# Using devices\n"
ROOT = """\
#       size         count      type   redop    root     time   algbw   busbw #wrong     time   algbw   busbw #wrong
#        (B)    (elements)                               (us)  (GB/s)  (GB/s)            (us)  (GB/s)  (GB/s)
"""
END = "# Out of bounds values : 0 OK\n# Avg bus bandwidth    : 0.1\n#\n"
NEW = f"""\
# nccl-tests version 2.17.8 nccl-headers=22606 nccl-library=22606
# Collective test starting: alltoall_perf
{START}{DEVICES}#
host0:99:99 [0] NCCL INFO comm 0x1 rank 0 nranks 8 - Init COMPLETE
{ROOT}\
           0             0     float    none      -1     3.00    0.00    0.00      0     3.00    0.00    0.00    N/A
         512            16     float    none      -1    20.50    0.02    0.02      0      N/A     N/A     N/A    N/A
        2048            64     float    none      -1    21.50    0.09    0.08      0    22.00    0.09    0.08    N/A
{END}# Collective test concluded: alltoall_perf
"""
OLD = f"""\
NCCL version 2.10.3+cuda11.4
{START.replace("nGpus 8", "nGpus 2")}\
#   Rank  0 Pid 18 on node device  0 [0x00] NVIDIA A100-SXM4-40GB
#   Rank  1 Pid 18 on node device  1 [0x00] NVIDIA A100-SXM4-40GB
#       size         count    type   redop     time   algbw   busbw  error     time   algbw   busbw  error
    33554432       8388608   float     sum   1464.2   22.92   22.92    N/A   1458.1   23.01   23.01    N/A
{END}"""


def table(folder: Path, *rows: dict, heading=REQUIRED) -> Path:
    path = folder / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.DictWriter(file, heading, extrasaction="ignore")
        writer.writeheader()
        writer.writerows(GOOD | row for row in rows)
    return path


def text(folder: Path, content: str, name: str = "out.txt") -> Path:
    path = folder / name
    path.write_text(content, "utf-8")
    return path


def test_a_csv_is_read_with_its_places_and_exact_times(tmp_path):
    one, two = read_rows([table(tmp_path, {}, {"bytes": "4096", "repeat": "2"}, heading=(*REQUIRED, "note", "repeat"))])
    assert (one.bytes, one.time_ps, one.ranks, one.repeat, one.preset) == (1024, 12_500_000, 8, 1, "dgx_h100")
    assert (two.bytes, two.repeat) == (4096, 2)
    assert two.place.endswith("rows.csv:3")


def test_headings_may_be_quoted(tmp_path):
    path = table(tmp_path, {})
    path.write_text(path.read_text().replace("platform", '"platform"', 1))
    assert len(read_rows([path])) == 1


@pytest.mark.parametrize(("key", "value", "said"), [(k, v, said) for k, (values, said) in BAD.items() for v in values])
def test_a_bad_cell_is_named(tmp_path, key, value, said):
    with pytest.raises(UsageError, match=rf"rows.csv:3: {key}: .*{said}"):
        read_rows([table(tmp_path, {}, {key: value})])


@pytest.mark.parametrize("lacking", REQUIRED)
def test_a_missing_column_is_named(tmp_path, lacking):
    with pytest.raises(UsageError, match=f'rows.csv:1: there is no column "{lacking}"'):
        read_rows([table(tmp_path, {}, heading=[name for name in REQUIRED if name != lacking])])


def test_repeats_are_one_row_unless_they_contradict(tmp_path):
    heading = (*REQUIRED, "repeat")
    rows = read_rows([table(tmp_path, {"repeat": 1, "time_us": "4"}, {"repeat": 2, "time_us": "9"}, heading=heading)])
    assert [row.time_ps for row in mean_of_repeats(rows)] == [6_000_000]
    for repeat, time, said in (("1", "9", "another time"), ("2", "900", "225 times")):
        rows = ({"repeat": 1, "time_us": "4"}, {"repeat": repeat, "time_us": time})
        with pytest.raises(UsageError, match=f"rows.csv:3: {said}.*rows.csv:2"):
            read_rows([table(tmp_path, *rows, heading=heading)])


def test_nccl_tests_of_217_are_read(tmp_path):
    rows = read_rows([text(tmp_path, NEW)])
    assert [(row.bytes, row.time_ps, row.in_place) for row in rows] == [
        (512, 20_500_000, "0"),
        (2048, 21_500_000, "0"),
        (2048, 22_000_000, "1"),
    ]
    assert {(r.collective, r.ranks, r.nodes, r.dtype, r.platform, r.version) for r in rows} == {
        ("all_to_all", 8, 2, "float", "H100-SXM", "2.26.6")
    }


def test_older_nccl_tests_are_read_with_the_name_of_the_file(tmp_path):
    called = "$ mpirun ./build/all_reduce_perf_mpi -g 2\n"
    for name, content in (("all_reduce_2.txt", OLD), ("AllReduce.log", OLD), ("x", called + OLD)):
        out, into = read_rows([text(tmp_path, content, name)])
        assert (out.time_ps, into.time_ps, out.ranks, out.nodes) == (1_464_200_000, 1_458_100_000, 2, 1)
        assert (out.collective, out.platform, out.version) == ("all_reduce", "A100-SXM", "2.10.3")
    with pytest.raises(UsageError, match="which test ran"):
        read_rows([text(tmp_path, OLD, "gathered.txt")])


def test_rccl_tests_are_read_with_and_without_the_name_of_the_gpu(tmp_path):
    for gpu, platform in (("AMD Instinct MI300X", "MI300X"), ("", "unknown")):
        content = "rccl-tests: Version develop:83d38d9\n" + DEVICES.replace("NVIDIA H100 80GB HBM3", gpu)
        row, *_ = read_rows([text(tmp_path, NEW.replace(DEVICES, content))])
        assert (row.library, row.platform, row.ranks) == ("RCCL", platform, 8)


def test_the_same_run_in_two_files_is_repeated(tmp_path):
    again = text(tmp_path, NEW.replace("20.50", "21.00"), "again.txt")
    assert [row.repeat for row in read_rows([text(tmp_path, NEW), again])] == [1, 1, 1, 2, 2, 2]


@pytest.mark.parametrize("lines", range(3, NEW.count("\n") - 3))
def test_cut_output_is_refused(tmp_path, lines):
    cut = "".join(line for line in NEW.splitlines(keepends=True)[:lines])
    with pytest.raises(UsageError, match=r"ends in the middle|no time"):
        read_rows([text(tmp_path, cut)])


def test_a_cut_row_and_a_lost_head_are_refused(tmp_path):
    with pytest.raises(UsageError, match=r"out.txt:20: a row of nccl-tests is cut"):
        read_rows([text(tmp_path, NEW[: NEW.index("21.50")])])
    with pytest.raises(UsageError, match="Rank"):
        read_rows([text(tmp_path, NEW.replace(DEVICES, ""))])
    warnings = []
    assert len(read_rows([text(tmp_path, NEW[: NEW.index(END)] + NEW)], warnings)) == 3
    assert "ends in the middle" in warnings[0] and len(warnings) == 1


def test_times_of_wrong_values_are_left_out_and_counted(tmp_path):
    wrong, warnings = NEW.replace("0.09    0.08      0 ", "0.09    0.08      7 "), []
    rows = read_rows([text(tmp_path, wrong)], warnings)
    assert [(row.bytes, row.in_place) for row in rows] == [(512, "0"), (2048, "1")]
    assert (
        len(warnings) == 1 and "out.txt:20: 7 values are wrong: no time of this collective (1 left out)" in warnings[0]
    )
    with pytest.raises(UsageError, match=r"out.txt:19: 7 values are wrong"):
        read_rows([text(tmp_path, wrong.replace("0.02      0 ", "0.02      7 ").replace("22.00 ", "  N/A "))])
    assert len(read_rows([text(tmp_path, OLD.replace("22.92    N/A", "22.92  5e-07"), "all_reduce.txt")])) == 2


def test_conditions_choose_rows(tmp_path):
    rows = read_rows([table(tmp_path, {}, {"ranks": "4"}, {"bytes": "2097152", "dtype": "int8"})])
    counts = {"ranks=2,8": 2, "bytes>=1 MiB": 1, "bytes<=1024": 2, "dtype=half, float": 2, "dtype=h*": 2, "ranks<5": 1}
    counts |= {"size>1 MiB": 1, "size!=1 KiB": 1, "ranks=2,4": 1, "time>1 s": 0, 'dtype="int8"': 1}
    for condition, count in counts.items():
        assert sum(map(chooser(condition), rows)) == count
    for wrong in ("ranks", "tiem=3", "ranks>many", "dtype>=half", "bytes>=1,2", "bytes>2 GB/s"):
        with pytest.raises(UsageError):
            list(map(chooser(wrong), rows))
