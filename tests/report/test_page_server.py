"""The page over a live engine: changes and their runs in a browser, and what the server refuses."""

import contextlib
import http.client
import json
import os
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from limits import WAIT_S
from worlds.pages import drawn, patient

import astrasim_py as ap
from astrasim_py.cli.main import main
from astrasim_py.core.errors import UsageError
from astrasim_py.core.point_names import PointName
from astrasim_py.inspection.view import chosen_points
from astrasim_py.live.live import LivePoint, label_of, run_live
from astrasim_py.live.page_server import MOST_BYTES

SCENARIO = """
name: alive
topologies:
  torus: {shape: torus, dims: [4, 4], bandwidth: 50 GB/s, latency: 500 ns}
workload:
  - all_reduce: {size: 64 KiB}
  - all_gather: {size: $size}
algorithms: {all_reduce: {builder: ring, chunks: 2}}
sweep: {size: [64 KiB, 1 MiB]}
"""


@pytest.fixture(scope="module")
def results(tmp_path_factory):
    folder = tmp_path_factory.mktemp("live")
    (folder / "alive.yaml").write_text(SCENARIO, "utf-8")
    assert main(["run", str(folder / "alive.yaml"), "--out", str(folder / "r"), "--quiet", "--jobs", "1"]) == 0
    return folder / "r" / "alive"


@pytest.fixture(scope="module")
def point(results):
    chosen, points = chosen_points([PointName(str(results), {"size": ("64 KiB",)})])
    return LivePoint(chosen[0], points)


@pytest.mark.parametrize(
    "change",
    [
        {},
        {"sizes": {"0": "1 MiB"}, "algorithms": {"0": 3, "1": 1}},
        {"links": [{"from": 0, "to": 1, "bandwidth": "1 GB/s"}], "failed": [[4, 5]]},
        {"placement": [5, 1, 2, 3, 4, 0, *range(6, 16)]},
    ],
)
def test_the_saved_scenario_takes_the_same_time(point, change, tmp_path):
    run = point.run(change)
    saved = tmp_path / "saved.yaml"
    saved.write_text(run.text, "utf-8")
    result = ap.run(saved, out=tmp_path / "r", jobs=1)
    found = run_live(run)
    assert result.rows[0]["time_ns"] * 1000 == found["time_ps"]
    # Each change plays a role.
    assert (found["time_ps"] == run_live(point.run({}))["time_ps"]) == (change == {})


def test_algorithms_by_size_are_named_in_plain_words():
    by_size = [
        {"when": {"size": "<= 256 KiB"}, "builder": "recursive_doubling"},
        {"builder": "ring", "bidirectional": True},
    ]
    assert label_of("all_reduce", by_size) == "recursive_doubling (size <= 256 KiB) | ring, bidirectional true"


def test_ranks_of_jobs_are_moved(tmp_path):
    scenario = {
        "name": "two",
        "topologies": {"ring": {"shape": "ring", "npus": 8, "bandwidth": "50 GB/s", "latency": "500 ns"}},
        "jobs": {
            "a": {"workload": [{"all_reduce": {"size": "64 KiB"}}], "placement": "$placement"},
            "b": {"workload": [{"all_reduce": {"size": "64 KiB"}}], "placement": [4, 5, 6, 7]},
        },
        "sweep": {"placement": {"in a row": [0, 1, 2, 3]}},
    }
    ap.run(scenario, out=tmp_path, jobs=1)
    (stored,), points = chosen_points([PointName(str(tmp_path / "two"))])
    point = LivePoint(stored, points)
    assert [size["label"] for size in point.offers()["sizes"]] == ["all_reduce of a", "all_reduce of b"]
    before = run_live(point.run({}))["time_ps"]
    assert before == stored.summary.makespan_ps
    apart = point.run({"placement": [0, 4, 1, 5, 2, 6, 3, 7]})
    assert "placement: [0, 4, 1, 5]" in apart.text and run_live(apart)["time_ps"] > before


def test_what_is_wrong_is_one_line_of_the_product(point):
    for change, words in [
        ({"sizes": {"0": "1 parsec"}}, r"alive_changed.yaml:\d+:\d+: workload\[0\].*unknown unit"),
        ({"links": [{"from": 0, "to": 9, "bandwidth": "1 GB/s"}]}, "no link from 0 to 9"),
        ({"failed": [[0, 1], [0, 4], [0, 3], [0, 12]]}, "cannot be reached|no path"),
        ({"placement": [0] * 16}, "twice"),
        ({"sizes": {"0": "1 EiB"}}, "."),
    ]:
        error = run_live(point.run(change))["error"]
        assert re.search(words, error) and "\n" not in error and "Traceback" not in error
    for change in [{"file": "/etc/passwd"}, {"sizes": {"7": "1 MiB"}}, {"algorithms": {"0": "ring"}}, {"links": 3}]:
        with pytest.raises(UsageError):
            point.run(change)


def test_a_run_of_too_many_messages_is_refused(point, monkeypatch):
    monkeypatch.setattr("astrasim_py.live.live.MOST_HOPS", 100)
    assert "too many for this page" in run_live(point.run({}))["error"]


# -- the server, as a user starts it ------------------------------------------------------------------------------


class Served:
    """A server that runs in a process of its own."""

    def __init__(self, results) -> None:
        command = [sys.executable, "-m", "astrasim_py", "view", f"{results}@size=64 KiB", "--serve"]
        self.process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True)
        self.url = self.process.stdout.readline().strip()
        self.port, self.path = re.fullmatch(r"http://127\.0\.0\.1:(\d+)(/[\w-]{32}/)", self.url).groups()
        self.port, self.host = int(self.port), f"127.0.0.1:{self.port}"

    def ask(self, method, path, body=None, **headers) -> tuple[int, bytes]:
        line = http.client.HTTPConnection("127.0.0.1", self.port, timeout=WAIT_S)
        headers = {"Host": self.host, **({"Origin": f"http://{self.host}"} if method == "POST" else {})} | headers
        headers = {name.replace("_", "-"): value for name, value in headers.items() if value is not None}
        line.request(method, path, body, headers)
        answer = line.getresponse()
        found = answer.status, answer.read()
        line.close()
        return found

    def change(self, change) -> dict:
        status, body = self.ask("POST", f"{self.path}run", json.dumps(change), Content_Type="application/json")
        assert status == 200
        return json.loads(body)

    def is_alive(self) -> bool:
        return self.ask("GET", self.path)[0] == 200 and "run" in self.change({})


@pytest.fixture(scope="module")
def served(results):
    served = Served(results)
    yield served
    served.process.send_signal(signal.SIGINT)
    assert served.process.wait(WAIT_S) == 0
    assert "Traceback" not in served.process.stderr.read()


def test_strangers_are_refused(served):
    run = f"{served.path}run"
    kind = {"Content_Type": "application/json"}
    for expected, method, path, more in [
        (403, "GET", "/", {}),
        (403, "GET", "/x" * 20 + "/", {}),
        (403, "GET", f"{served.path}../../etc/passwd", {}),
        (403, "GET", f"{served.path}%2e%2e/%2e%2e/etc/passwd", {}),
        (403, "GET", "//etc/passwd", {}),
        (403, "GET", served.path, {"Host": f"evil.example:{served.port}"}),
        (403, "GET", served.path, {"Host": "127.0.0.1"}),
        (403, "GET", served.path, {"Origin": "http://evil.example"}),
        (403, "POST", run, kind | {"Origin": "http://evil.example"}),
        (403, "POST", run, kind | {"Origin": "null"}),
        (403, "POST", run, kind | {"Origin": None}),
        (403, "POST", "/run", kind),
        (403, "POST", served.path, kind),
        (415, "POST", run, {"Content_Type": "text/plain"}),
        (501, "PUT", run, kind),
        (501, "DELETE", served.path, {}),
    ]:
        status, body = served.ask(method, path, "{}" if method == "POST" else None, **more)
        assert (status, b"root:" in body) == (expected, False), (method, path, more)
    for body in ("", "[1]", "{", "[" * 60_000, '{"a": ' * 9_000, "\xff"):
        assert served.ask("POST", run, body.encode("latin1"), **kind)[0] == 400
    assert "cannot be changed here" in served.change({"allow_code": True})["error"]
    assert served.is_alive()


def test_a_large_body_is_refused_before_it_is_sent(served):
    head = f"POST {served.path}run HTTP/1.1\r\nHost: {served.host}\r\nOrigin: http://{served.host}\r\n"
    head += "Content-Type: application/json\r\n"
    for length, code in (("Content-Length: 100000000", b"413"), (f"Content-Length: {MOST_BYTES + 1}", b"413"),
                         ("Content-Length: -1", b"411"), ("Transfer-Encoding: chunked", b"411")):  # fmt: skip
        with socket.create_connection(("127.0.0.1", served.port), WAIT_S) as line:
            line.sendall(f"{head}{length}\r\n\r\n".encode())
            assert line.recv(1000).split()[1] == code
    assert served.is_alive()


def test_a_thousand_requests_at_once_are_answered_or_refused(served):
    def one(_) -> int:
        try:
            return served.ask("GET", served.path)[0]
        except (OSError, http.client.HTTPException):
            return 503

    with ThreadPoolExecutor(200) as pool:
        found = list(pool.map(one, range(1000)))
    assert set(found) <= {200, 503} and 200 in found
    assert served.is_alive()


@pytest.mark.slow
def test_slow_clients_hold_no_place_for_long(served):
    lines, answered = [], False
    for _ in range(40):  # more than there are places
        line = socket.create_connection(("127.0.0.1", served.port), WAIT_S)
        line.sendall(b"GET / HTTP/1.1\r\n")
        lines.append(line)
    end = time.monotonic() + WAIT_S / 3
    while not answered and time.monotonic() < end:
        for line in lines:  # a few bytes now and then
            try:
                line.sendall(b"X")
            except OSError:
                continue
        with contextlib.suppress(OSError, http.client.HTTPException):
            answered = served.ask("GET", served.path)[0] == 200
        time.sleep(0.5)
    assert answered
    for line in lines:
        line.close()
    assert served.is_alive()


def worker_of(served) -> int:
    """The process that runs changes, from what Linux says of the server's children."""
    lists = Path(f"/proc/{served.process.pid}/task").glob("*/children")
    children = [int(child) for listed in lists for child in listed.read_text().split()]
    (found,) = (child for child in children if b"spawn_main" in Path(f"/proc/{child}/cmdline").read_bytes())
    return found


@pytest.mark.slow
@pytest.mark.skipif(not Path("/proc/self/task").is_dir(), reason="finds the process as Linux tells it")
def test_a_worker_that_dies_or_takes_long_is_replaced(served):
    os.kill(worker_of(served), signal.SIGKILL)
    first = served.change({})
    assert "run" in first or "killed" in first["error"]
    assert "run" in served.change({"failed": [[0, 1]]})
    # One that hangs is killed by the next change.
    before = worker_of(served)
    os.kill(before, signal.SIGSTOP)
    with ThreadPoolExecutor(1) as pool:
        stuck = pool.submit(served.change, {"sizes": {"0": "2 MiB"}})
        time.sleep(3)
        assert "run" in served.change({"sizes": {"0": "4 MiB"}})
        assert stuck.result() == {"stopped": True, "yaml": stuck.result()["yaml"]}
    assert worker_of(served) != before


def test_a_port_in_use_is_one_line(served, results, capsys):
    view = ["view", f"{results}@size=64 KiB"]
    for more, words in [
        (["--serve", "--port", str(served.port)], "cannot be used"),
        (["--serve", "--port", "70000"], "cannot be used"),
        (["--serve", "-o", "x.html"], "drop one of them"),
        (["--port", "8000"], "add --serve"),
    ]:
        assert main([*view, *more]) == 2
        error = capsys.readouterr().err
        assert words in error and error.count("\n") == 1


# -- in a browser -------------------------------------------------------------------------------------------------


@pytest.fixture
def page(served):
    """The page; at the end nothing may have gone wrong in it, and nobody but the server been asked."""
    playwright = pytest.importorskip("playwright.sync_api")
    browser = shutil.which("chromium")
    if browser is None:
        pytest.skip("no Chromium on this machine")
    wrong = []
    with playwright.sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=browser, args=["--no-sandbox"])
        page = patient(chromium.new_page(viewport={"width": 1200, "height": 900}))
        page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
        page.on("pageerror", lambda error: wrong.append(str(error)))
        ours = (served.url, "blob:")
        page.on("request", lambda request: None if request.url.startswith(ours) else wrong.append(request.url))
        page.goto(served.url)
        page.wait_for_selector("body[data-ready]")
        yield page
        chromium.close()
    assert wrong == []


def shown(page) -> int:
    """The time of the run that is shown, once it is the newest."""
    while not page.evaluate("window.live.asked === window.live.answered"):
        page.wait_for_timeout(20)
    drawn(page)
    return page.evaluate("window.page.runs[0].makespan")


def find(page, name):
    page.fill("#find", name)
    page.press("#find", "Enter")


@pytest.mark.slow
def test_changes_in_the_page(served, page, tmp_path):
    before = page.evaluate("window.page.runs[0].makespan")
    page.select_option("#speed", "3")
    page.click("#play")
    while not page.evaluate("window.page.time > 0"):
        page.wait_for_timeout(20)
    page.click("#play")
    assert page.evaluate("window.page.time") > 0
    page.evaluate("e = document.getElementById('time'); e.value = 5000; e.dispatchEvent(new Event('input'))")
    # Break a link: the ring goes round. Click the dashed link, and repair it.
    find(page, "0->1")
    page.click("text=Break it")
    broken = shown(page)
    assert broken > before and "0–1 broken" in page.inner_text("#runs")
    box = page.locator("canvas.network").bounding_box()
    x, y = page.evaluate(
        "(c => [0, 1].map(i => (c[i] + 2 * c[i + 2] + c[i + 4]) / 4))(window.page.runs[0].layout.curves.at(-1))"
    )
    page.mouse.click(box["x"] + x, box["y"] + y)
    drawn(page)
    assert "is broken" in page.inner_text("#details")
    page.click("text=Repair it")
    assert shown(page) == before
    # A slower link.
    find(page, "0->1")
    page.fill("#chosen input", "1 GB/s")
    page.press("#chosen input", "Enter")
    assert shown(page) > before
    # A wrong size says so, and leaves the run.
    size = page.locator("#change input").first
    size.fill("much")
    size.press("Enter")
    shown(page)
    assert "is not a size" in page.inner_text("#answer")
    size.fill("4 MiB")
    size.press("Enter")
    large = shown(page)
    page.locator("#change select").first.select_option(label="halving_doubling")
    assert shown(page) != large
    # Two ranks change places.
    find(page, "5")
    page.click("text=Swap its rank with")
    find(page, "6")
    shown(page)
    assert page.evaluate("window.page.runs[0].npu_of.slice(5, 7)") == [6, 5]
    page.check("#change input[type=checkbox]")
    drawn(page)
    assert page.evaluate("window.page.runs.map(r => r.makespan)")[1] == before
    assert page.locator("canvas.network").count() == 2
    # What is saved is what is shown.
    with page.expect_download() as download:
        page.click("text=Save as YAML")
    saved = tmp_path / download.value.suggested_filename
    download.value.save_as(saved)
    assert saved.name == "alive_changed.yaml"
    result = ap.run(saved, out=tmp_path / "r", jobs=1)
    assert result.rows[0]["time_ns"] * 1000 == page.evaluate("window.page.runs[0].makespan")
    page.click("text=Undo all")
    assert shown(page) == before


def test_only_the_newest_of_many_changes_is_shown(served):
    """Those in between are told that they were stopped."""
    with ThreadPoolExecutor(12) as pool:
        found = list(pool.map(served.change, [{"sizes": {"0": f"{n} MiB"}} for n in range(1, 13)]))
    assert any("run" in one for one in found)
    assert all("run" in one or one.get("stopped") for one in found)
    assert threading.active_count() < 50
