"""The page that plays a run: its data agrees with the records, and it works in a browser without any request."""

import base64
import gzip
import html
import json
import re
import shutil
from pathlib import Path

import numpy as np
import pytest
from matplotlib import colormaps
from matplotlib.colors import to_hex, to_rgb
from worlds.pages import drawn, patient
from worlds.panels import panel_of

import astrasim_py as ap
from astrasim_py.cli.main import main
from astrasim_py.report import breakdown_plot, explore_plots
from astrasim_py.report import page as page_module
from astrasim_py.report.figure_style import COMPUTE_COLOURS
from astrasim_py.report.plots import figure_of

BROWSER = shutil.which("chromium")

SCENARIO = """
name: seen
topologies:
  torus: {shape: torus, dims: [4, 4], bandwidth: 50 GB/s, latency: 500 ns, failed: {links: [[10, 14]]}}
  fabric: {shape: leaf_spine, leaves: 4, hosts_per_leaf: 4, spines: 2, bandwidth: 50 GB/s, latency: 500 ns}
workload:
  - compute: {time: 20 us, name: forward}
  - all_reduce: {size: 1 MiB}
algorithms: {all_reduce: ring}
record: messages
sweep: {topology: [torus, fabric]}
"""


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    """Results of two points, and pages of one and of both."""
    folder = tmp_path_factory.mktemp("page")
    (folder / "seen.yaml").write_text(SCENARIO, "utf-8")
    results = folder / "results"
    assert main(["run", str(folder / "seen.yaml"), "--out", str(results), "--quiet", "--jobs", "1"]) == 0
    one = ["view", f"{results / 'seen'}@topology=torus"]
    assert main([*one, "-o", str(folder / "one.html")]) == 0
    assert main([*one, "@topology=fabric", "--output", str(folder / "two.html")]) == 0
    return folder


def runs_of(page: str) -> list[dict]:
    found = re.findall(r'<script type="text/plain" class="run">([^<]*)</script>', page)
    return [json.loads(gzip.decompress(base64.b64decode(text))) for text in found]


@pytest.fixture(scope="module")
def run(folder):
    (one,) = runs_of((folder / "one.html").read_text("utf-8"))
    return one


def test_the_page_needs_nothing_from_outside(folder):
    text = (folder / "two.html").read_text("utf-8")
    assert len(runs_of(text)) == 2
    assert not re.search(r"https?://|<link|\bsrc=|url\(|@[A-Z]+@|^import |^export ", text, re.MULTILINE)
    assert len(text) < 200_000


def test_the_same_point_gives_the_same_bytes(folder):
    again = folder / "again.html"
    assert main(["view", "seen@topology=torus", "--out", str(folder / "results"), "-o", str(again)]) == 0
    assert again.read_bytes() == (folder / "one.html").read_bytes()


def test_use_over_time_adds_up_to_the_busy_time_of_links(run):
    use, hops = run["use"], run["hops"]
    bins = np.array(use["busy"]).reshape(len(use["link"]), use["bins"])
    busy = np.zeros(len(run["links"]["name"]))
    np.add.at(busy, hops["link"], np.array(hops["end"]) - np.array(hops["start"]))
    # Each bin is rounded to a percent.
    assert bins.mean(axis=1) / 100 * run["makespan"] == pytest.approx(busy[use["link"]], rel=0.01)


def test_a_ring_all_reduce_brings_every_chunk_to_every_rank(run):
    messages = run["messages"]
    cells = {}
    for rank, first, count in zip(messages["dst"], messages["first"], messages["count"], strict=True):
        for chunk in range(first, first + count):
            cells[rank, chunk] = cells.get((rank, chunk), 0) + 1
    # Reduce-scatter and all-gather leave out one chunk of a rank each, another one.
    assert len(cells) == 16 * 16 and sum(cells.values()) == 16 * 30


def test_links_that_failed_before_the_run_are_in_the_page(run):
    assert run["broken"] == [[10, 14]]
    assert not {"10->14", "14->10"} & set(run["links"]["name"])


def bars_of(ranks: int, each: int, length: int, apart: int) -> dict[str, np.ndarray]:
    """Bars one after the other on every rank, alternately of two kinds, each with a name of its own."""
    rank, number = np.repeat(np.arange(ranks), each), np.tile(np.arange(each), ranks)
    start = number * (length + apart)
    return {"rank": rank, "kind": number % 2, "name": number, "start": start, "end": start + length}


def rows_of(bars: dict[str, np.ndarray]) -> set[tuple]:
    return set(zip(*(bars[name].tolist() for name in ("rank", "kind", "name", "start", "end")), strict=True))


@pytest.mark.parametrize("ranks", [1, 60, 255, 256, 257])
@pytest.mark.parametrize("more", [0, 1])
def test_as_many_bars_as_there_is_room_for_are_all_drawn(ranks, more):
    each = page_module._MOST_BARS // ranks + more
    bars = bars_of(ranks, each, 10**9, 0)
    found, shown, note = page_module._fitting(bars, ranks, each, each * 10**9 if ranks > 30 else 1)
    if not more:
        assert (rows_of(found), shown.tolist(), note) == (rows_of(bars), list(range(ranks)), "")
    elif ranks > 1:
        assert f"of {ranks} ranks have a row" in note and len(found["rank"]) <= page_module._MOST_BARS


@pytest.mark.parametrize(("ranks", "each"), [(160, 400), (256, 400), (1000, 61), (7, 50_000)])
def test_ranks_that_are_left_out_are_spread_evenly_and_said(ranks, each):
    """No bar is shorter than a part of the run, so none can be drawn together."""
    bars = bars_of(ranks, each, 10**6, 10**6)
    found, shown, note = page_module._fitting(bars, ranks, each, 10**6)
    assert f"{len(shown)} of {ranks} ranks have a row, evenly spaced" in note and "together" not in note
    assert page_module._MOST_BARS - each < len(found["rank"]) <= page_module._MOST_BARS
    gaps = np.diff(shown)
    assert shown[0] == 0 and gaps.max(initial=1) - gaps.min(initial=1) <= 1
    assert ranks - shown[-1] <= gaps.max(initial=ranks)
    assert rows_of(found) == {row for row in rows_of(bars) if row[0] in set(shown.tolist())}


def test_bars_too_short_to_be_seen_are_drawn_together_on_every_rank():
    """A million bars: wherever one of a kind was, one of that kind still is, to a part of the run."""
    ranks, each, length = 8, 125_000, 1000
    bars = bars_of(ranks, each, length, 0)
    until = each * length
    found, shown, note = page_module._fitting(bars, ranks, each, until)
    assert shown.tolist() == list(range(ranks)) and len(found["rank"]) <= page_module._MOST_BARS
    assert f"({ranks * each:,} as {len(found['rank']):,})" in note and "evenly" not in note
    width = until / page_module._BINS
    for rank in (0, 7):
        for kind in (0, 1):
            mine = (found["rank"] == rank) & (found["kind"] == kind)
            start, end = found["start"][mine], found["end"][mine]
            assert (start[0], end[-1]) == (kind * length, until - (1 - kind) * length)
            # Of one kind there is a gap of 1,000 ps behind every bar; together no gap is wider, and none is added.
            assert ((start[1:] - end[:-1]) <= width).all() and ((end - start) <= width + length).all()
            assert (found["name"][mine] == each).all()


def test_a_bar_that_is_long_enough_stays_alone():
    bars = bars_of(1, page_module._MOST_BARS + 1, 1000, 0)
    bars["end"][5] = bars["start"][5] + 10**9
    found, _, _ = page_module._fitting(bars, 1, page_module._MOST_BARS + 1, int(bars["end"].max()))
    assert (0, 1, 5, 5000, 5000 + 10**9) in rows_of(found)


def test_colours_are_those_of_figures(folder):
    """Compute and communication look alike on the page, in a Gantt chart and in a breakdown."""
    text = (folder / "one.html").read_text("utf-8")
    colours = json.loads(html.unescape(re.search(r"data-palette='([^']*)'", text)[1]))
    parts = {label: colour for _, label, colour, _ in breakdown_plot.PARTS}
    assert (colours["compute"], colours["collective"]) == (parts["compute"], parts["exposed communication"])
    for kind in ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast"):
        step = ap.workload(4)
        step.compute("20 us")
        getattr(step, kind)("1 MiB")
        network = ap.build_topology(shape="ring", npus=4, bandwidth="50 GB/s", latency="500 ns")
        made = figure_of(
            {"kind": "gantt"}, [], panels=[panel_of(ap.problem(step, network), level="nodes")], place="plots"
        )
        legend = made.axes[0].figure.legends[0]
        drawn = {
            t.get_text(): to_hex(p.get_facecolor()) for t, p in zip(legend.texts, legend.get_patches(), strict=True)
        }
        assert drawn == {"compute": colours["compute"].lower(), kind.replace("_", "-"): colours[kind].lower()}
    bars = explore_plots._STEP
    assert bars["forward"] == colours["compute"] and bars["tp"] == colours["collective"]
    assert not {bars[part] for part in ("tp", "cp", "ep", "pp", "dp", "reduction")} & set(COMPUTE_COLOURS)
    assert [colours[phase] for phase in ("forward", "backward", "optimizer")] == [*COMPUTE_COLOURS[:3]]
    # Links by their use: in the colours of figures of links, each darker than the one before, on black each brighter.
    for name, sign in (("use", -1), ("use_dark", 1)):
        brightness = [np.dot(to_rgb(colour), (0.299, 0.587, 0.114)) for colour in colours[name]]
        assert len(brightness) == 5 and all(np.diff(brightness) * sign > 0.05)
        scale = [to_rgb(colour) for colour in colormaps["cividis_r"](np.linspace(0, 1, 256))[:, :3]]
        assert all(min(np.abs(np.subtract(scale, to_rgb(c))).sum(axis=1)) < 0.02 for c in colours[name])
    # No colour of data is written in the page's own files.
    for path in (Path(page_module.__file__).parents[1] / "page").glob("*.js"):
        assert set(re.findall(r"#[0-9a-fA-F]{6}", path.read_text("utf-8"))) <= {"#000000", "#ffffff", "#0072b2"}


def test_bars_of_collectives_have_their_type(run):
    bars = run["bars"]
    kinds = {bars["kinds"][kind] for kind in bars["kind"]}
    assert kinds == {"forward", "all_reduce"} and len(bars["kind"]) == 32


def test_phases_of_training_are_told_apart(tmp_path):
    """By the names of nodes, whatever their case; without any, all computation is compute."""
    names = ("forward", "layer3_bwd", "Optimizer.step", "loss", "")

    def kinds(chosen) -> dict[str, str]:
        work = [{"compute": {"time": "1 us", **({"name": name} if name else {})}} for name in chosen]
        ring = {"shape": "ring", "npus": 2, "bandwidth": "50 GB/s", "latency": "500 ns"}
        scenario = {"name": "phases", "topologies": {"ring": ring}, "workload": work, "record": "messages"}
        ap.run(scenario, out=tmp_path, jobs=1, fresh=True)
        assert main(["view", str(tmp_path / "phases"), "-o", str(tmp_path / "page.html")]) == 0
        (shown,) = runs_of((tmp_path / "page.html").read_text("utf-8"))
        bars = shown["bars"]
        pairs = zip(bars["name"], bars["kind"], strict=True)
        return {bars["names"][name]: bars["kinds"][kind] for name, kind in pairs}

    found = kinds(names)
    assert [found[name] for name in names[:4]] == ["forward", "backward", "optimizer", page_module.OTHER]
    assert set(kinds(names[3:]).values()) == {"compute"}
    drawn_alike = [kind for kind, colour in page_module.palette().items() if colour == COMPUTE_COLOURS[0]]
    assert drawn_alike == ["compute", "forward"]  # and these two are never in one chart


def test_the_critical_path_covers_the_makespan(run):
    assert sum(end - start for start, end, *_ in run["path"]) == run["makespan"]


def test_without_a_point_that_farthest_from_its_bound_is_shown(folder, capsys):
    results = str(folder / "results" / "seen")
    assert main(["view", results, "-o", str(folder / "worst.html")]) == 0
    assert "2 points; the one farthest from its bound is shown: topology=" in capsys.readouterr().err
    (shown,) = runs_of((folder / "worst.html").read_text("utf-8"))
    assert shown["title"].startswith("topology=")


def test_points_and_ranks_that_are_not_there_are_one_line(folder, capsys):
    results = str(folder / "results" / "seen")
    out = ["-o", str(folder / "never.html")]
    torus = f"{results}@topology=torus"
    for names in ([f"{results}@topology=ring"], [torus] * 3, [torus, "--ranks", "0-16"], [torus, "--ranks", "x"]):
        assert main(["view", *names, *out]) == 2
        error = capsys.readouterr().err
        assert error.count("\n") == 1 and "Traceback" not in error
    assert not (folder / "never.html").exists()


@pytest.fixture(scope="module")
def browser():
    playwright = pytest.importorskip("playwright.sync_api")
    if BROWSER is None:
        pytest.skip("no Chromium on this machine")
    with playwright.sync_playwright() as driver:
        browser = driver.chromium.launch(executable_path=BROWSER, args=["--no-sandbox"])
        yield browser
        browser.close()


@pytest.fixture
def page(browser):
    """An empty page; at the end nothing may have gone wrong in it, and nothing been asked of anybody."""
    page, wrong = patient(browser.new_page(viewport={"width": 1200, "height": 900})), []
    page.on("console", lambda message: wrong.append(message.text) if message.type in ("error", "warning") else None)
    page.on("pageerror", lambda error: wrong.append(str(error)))
    page.on("request", lambda request: None if request.url.startswith("file:") else wrong.append(request.url))
    yield page
    page.close()
    assert wrong == []


def shown(page, path):
    page.goto(path.as_uri())
    page.wait_for_selector("body[data-ready]")


@pytest.mark.slow
def test_time_plays_and_is_scrubbed(page, folder):
    shown(page, folder / "one.html")
    page.select_option("#speed", "3")
    page.click("#play")
    while not page.evaluate("window.page.time > 0.2 * window.page.span && window.page.runs[0].drawn > 0"):
        page.wait_for_timeout(20)
    page.keyboard.press("t")
    page.click("#play")
    stopped = page.evaluate("window.page.time")
    page.wait_for_timeout(100)
    assert page.evaluate("window.page.time") == stopped
    page.keyboard.press("End")
    assert page.evaluate("window.page.time") == page.evaluate("window.page.span")
    page.keyboard.press("ArrowLeft")
    assert page.evaluate("window.page.time") < page.evaluate("window.page.span")
    page.evaluate("e = document.getElementById('time'); e.value = 5000; e.dispatchEvent(new Event('input'))")
    assert page.evaluate("window.page.time") == page.evaluate("window.page.span") / 2
    drawn(page)
    assert "of" in page.inner_text("#now")


@pytest.mark.slow
def test_a_click_says_what_a_link_an_npu_and_a_message_do(page, folder):
    shown(page, folder / "one.html")
    page.evaluate("e = document.getElementById('time'); e.value = 5000; e.dispatchEvent(new Event('input'))")
    drawn(page)
    box = page.locator("canvas.network").bounding_box()

    def click(where):
        x, y = page.evaluate(f"(() => {{ const l = window.page.runs[0].layout; return {where}; }})()")
        page.mouse.click(box["x"] + x, box["y"] + y)
        drawn(page)
        return page.inner_text("#details")

    text = click("[l.px[5], l.py[5]]")
    assert "NPU 5" in text and re.search(r"gets next\s+rank 4 → 5, 64 KiB at [\d.]+ µs: (is|waits|has)", text)
    assert "Critical path now: " in page.inner_text("#runs")
    page.fill("#find", "1->0")
    page.press("#find", "Enter")
    drawn(page)
    assert "Link 1->0" in page.inner_text("#details")
    page.fill("#find", "1->9")
    page.press("#find", "Enter")
    assert 'Nothing is called "1->9"' in page.inner_text("#details")
    middle = "(c => [0, 1].map(i => (c[i] + 2 * c[i + 2] + c[i + 4]) / 4))"
    text = click(f"{middle}(l.curves[window.page.runs[0].links.name.indexOf('1->0')])")
    assert "Link 1->0" in text and "50 GB/s" in text and "on the critical path" in text
    assert "Message rank" in click(
        "(() => { const r = window.page.runs[0], t = window.page.time;"
        " const i = [...r.bin.at(t)].find(i => r.hops.start[i] <= t && r.hops.arrive[i] >= t);"
        " const s = (t - r.hops.start[i]) / (r.hops.arrive[i] - r.hops.start[i]), c = l.curves[r.hops.link[i]];"
        " return [0, 1].map(k => (1-s)*(1-s)*c[k] + 2*s*(1-s)*c[k+2] + s*s*c[k+4]); })()"
    )


@pytest.mark.slow
def test_the_page_says_which_ranks_have_a_row(page, folder, monkeypatch):
    monkeypatch.setattr(page_module, "_MOST_BARS", 12)
    few = folder / "few.html"
    assert main(["view", f"{folder / 'results' / 'seen'}@topology=torus", "-o", str(few)]) == 0
    shown(page, few)
    assert "20 bars left out: 6 of 16 ranks have a row, evenly spaced" in page.inner_text("#runs")
    assert "view NAME --ranks 0-5 shows these in full" in page.inner_text("#runs")
    assert page.evaluate("window.page.runs[0].bars.ranks") == [0, 2, 5, 8, 10, 13]
    for name, text in (("2", "does now\nforward"), ("3", "not known: its bars are left out")):
        page.fill("#find", name)
        page.press("#find", "Enter")
        drawn(page)
        assert text in page.inner_text("#details")
    # As the page says: other ranks are chosen, and none of their bars is left out.
    point = f"{folder / 'results' / 'seen'}@topology=torus"
    assert main(["view", point, "--ranks", "1,3-5", "-o", str(few)]) == 0
    shown(page, few)
    assert page.evaluate("(b => [b.ranks, b.rank.length, b.note])(window.page.runs[0].bars)") == [[1, 3, 4, 5], 8, ""]
    assert "left out" not in page.inner_text("#runs")


def in_sight(page) -> list[str]:
    """What of the networks, Gantt charts and controls lies outside of the window or has no room."""
    return page.evaluate("""[
        ...document.querySelectorAll("canvas.network, canvas.gantt, #play, #time, #large")
    ].filter(e => {
        const box = (e.tagName === "CANVAS" ? e.parentElement : e).getBoundingClientRect();
        const least = e.className === "network" ? [150, 120] : e.className === "gantt" ? [150, 80] : [10, 10];
        return box.top < 0 || box.left < 0 || box.bottom > innerHeight || box.right > innerWidth
            || box.width < least[0] || box.height < least[1];
    }).map(e => e.className || e.id)""")


@pytest.mark.slow
@pytest.mark.parametrize("npus", [4, 64, 256])
def test_network_and_gantt_chart_are_in_sight_together(page, tmp_path, npus):
    """On a small screen, one point and two, on a desk and on a projector."""
    scenario = {
        "name": "room",
        "topologies": {"net": {"shape": "ring", "npus": npus, "bandwidth": "50 GB/s", "latency": "500 ns"}},
        "workload": [
            {"compute": {"time": "20 us", "name": "forward"}},
            {"broadcast": {"size": "$size"}},
        ],
        "sweep": {"size": ["1 KiB", "2 KiB"]},
    }
    ap.run(scenario, out=tmp_path, jobs=1)
    one = ["view", f"{tmp_path / 'room'}@size=1 KiB"]
    assert main([*one, "-o", str(tmp_path / "1.html")]) == 0
    assert main([*one, "@size=2 KiB", "-o", str(tmp_path / "2.html")]) == 0
    for name in ("1.html", "2.html"):
        shown(page, tmp_path / name)
        for height in (720, 768, 620):
            page.set_viewport_size({"width": 1366, "height": height})
            drawn(page)
            assert in_sight(page) == []
            assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")
        page.keyboard.press("p")
        page.set_viewport_size({"width": 1366, "height": 720})
        drawn(page)
        assert in_sight(page) == []


@pytest.mark.slow
def test_time_goes_back_and_events_are_stepped_both_ways(page, folder):
    shown(page, folder / "one.html")
    moments = page.evaluate("Array.from(window.page.moments)")
    assert moments == sorted(set(moments)) and moments[0] == 0 and moments[-1] == page.evaluate("window.page.span")
    for number, moment in enumerate(moments[1:8], 2):
        page.keyboard.press("ArrowRight")
        drawn(page)
        assert page.evaluate("window.page.time") == moment and f"event {number} of {len(moments)}" in page.inner_text(
            "#now"
        )
    for moment in moments[6:0:-1]:
        page.keyboard.press("ArrowLeft")
        assert page.evaluate("window.page.time") == moment
    page.select_option("#speed", "3")
    page.keyboard.press("End")
    page.keyboard.press("b")
    while not page.evaluate("window.page.time < 0.8 * window.page.span"):
        page.wait_for_timeout(20)
    page.keyboard.press(" ")
    before = page.evaluate("window.page.time")
    while not page.evaluate(f"window.page.time > {before}"):
        page.wait_for_timeout(20)
    page.click("#reverse")
    while page.evaluate("window.page.playing"):
        page.wait_for_timeout(20)
    assert page.evaluate("window.page.time") == 0 and page.inner_text("#reverse") == "◀ Play"


@pytest.mark.slow
def test_large_type_for_a_projector(page, folder):
    """By key, button and address; without what is not needed to play, which still works by keyboard."""
    shown(page, folder / "one.html")
    small = page.evaluate("window.page.runs[0].layout.radius")
    large = "document.body.classList.contains('present')"
    for act in (lambda: page.keyboard.press("p"), lambda: page.click("#large")):
        act()
        drawn(page)
        assert page.evaluate(large) and page.evaluate("getComputedStyle(document.body).fontSize") == "22px"
        assert not any(page.is_visible(name) for name in ("#speed", "#find", "#theme", "#rows", "#keys"))
        assert all(page.is_visible(name) for name in ("#play", "#reverse", "#back", "#time", "#legend", "#now"))
        page.keyboard.press("ArrowRight")
        page.keyboard.press("Escape")
        drawn(page)
        assert not page.evaluate(large) and page.evaluate("window.page.time") > 0
        assert page.evaluate("window.page.runs[0].layout.radius") == small
    for end in ("?present", "#present"):
        page.goto((folder / "one.html").as_uri() + end)
        page.wait_for_selector("body[data-ready]")
        assert page.evaluate(large)
        page.goto("about:blank")


LINKS = {"bandwidth": "50 GB/s", "latency": "500 ns"}
PETERSEN = [pair for i in range(5) for pair in ((i, (i + 1) % 5), (i, i + 5), (i + 5, (i + 2) % 5 + 5))]
NETWORKS = {
    "petersen": {
        "shape": "edge_list",
        "edges": [{"src": a, "dst": b, **LINKS} for p in PETERSEN for a, b in (p, p[::-1])],
    },
    "torus": {"shape": "torus", "dims": [8, 8], **LINKS},
    "cube": {"shape": "torus", "dims": [4, 4, 4], **LINKS},
    "hypercube": {"shape": "hypercube", "npus": 32, **LINKS},
    "fat_tree": {"shape": "fat_tree", "k": 4, **LINKS},
    "dragonfly": {"shape": "dragonfly", "a": 4, "h": 2, "p": 2, **LINKS},
    "two": {"shape": "ring", "npus": 2, **LINKS},
}


@pytest.mark.slow
def test_vertices_and_links_of_networks_stand_clear_of_vertices(page, tmp_path):
    """No vertex touches another one, nor a link that ends elsewhere."""
    scenario = {
        "name": "clear",
        "topologies": NETWORKS,
        "workload": [{"compute": {"time": "1 us"}}],
        "sweep": {"topology": list(NETWORKS)},
    }
    ap.run(scenario, out=tmp_path, jobs=1)
    for name in NETWORKS:
        assert main(["view", f"{tmp_path / 'clear'}@topology={name}", "-o", str(tmp_path / "net.html")]) == 0
        shown(page, tmp_path / "net.html")
        drawn(page)
        radius, apart, beside = page.evaluate("""(run => {
            const { px, py, curves, radius } = run.layout, { src, dst } = run.links;
            let [apart, beside] = [Infinity, Infinity];
            px.forEach((x, v) => px.forEach((a, w) => {
                if (w > v) apart = Math.min(apart, Math.hypot(a - x, py[w] - py[v]));
            }));
            curves.forEach(([ax, ay, bx, by, cx, cy], link) => px.forEach((x, v) => {
                if (v === src[link] || v === dst[link]) return;
                for (let t = 0; t <= 1; t += 0.02) beside = Math.min(beside, Math.hypot(
                    (1 - t) * (1 - t) * ax + 2 * t * (1 - t) * bx + t * t * cx - x,
                    (1 - t) * (1 - t) * ay + 2 * t * (1 - t) * by + t * t * cy - py[v]));
            }));
            return [radius, apart, beside === Infinity ? null : beside];
        })(window.page.runs[0])""")
        assert radius >= 1.5 and apart > 2 * radius, name
        assert beside is None or beside >= radius, name


@pytest.mark.slow
def test_as_part_of_another_page(page, folder):
    """A run alone, in the little room that a page of documentation has: still with controls, network and chart."""
    page.set_viewport_size({"width": 720, "height": 420})
    page.goto((folder / "one.html").as_uri() + "#embed")
    page.wait_for_selector("body[data-ready]")
    drawn(page)
    assert in_sight(page) == ["large"] and not page.is_visible("#legend")
    assert page.evaluate("document.documentElement.scrollHeight <= innerHeight")


@pytest.mark.slow
def test_the_legend_says_what_colours_mean(page, folder):
    shown(page, folder / "one.html")
    legend = page.inner_text("#legend")
    for words in (
        "forward",
        "all_reduce",
        "0–5 %",
        "5–10 %",
        "10–20 %",
        "20–40 %",
        "40–100 %",
        "idle",
        "messages wait",
    ):
        assert words in legend
    assert re.search(r"Chunks: .*\n?nothing yet\n?a part of what it gets.*\n?all that it gets", legend)
    assert re.search(r"Chunks of all_reduce 1 MiB \(ring\): ranks 0–15 × 16 chunks", page.inner_text("#runs"))
    # Each step of use has a width and a colour of its own.
    lines = page.evaluate(
        """[...document.querySelectorAll("#legend i.line")].map(e => [e.style.height, e.style.background])"""
    )
    assert len({height for height, _ in lines[1:6]}) == len({colour for _, colour in lines[1:6]}) == 5


@pytest.mark.slow
def test_what_cannot_be_told_apart_is_said_and_can_be_seen(page, folder):
    shown(page, folder / "one.html")
    unseen = "document.querySelector('.unseen').textContent"
    page.set_viewport_size({"width": 1366, "height": 560})
    page.keyboard.press("r")
    drawn(page)
    assert re.search(r"\d+ of 16 rows are out of sight: scroll the chart", page.evaluate(unseen))
    assert page.evaluate("(p => p.scrollHeight > p.clientHeight)(document.querySelector('.pane.gantt'))")
    page.keyboard.press("r")
    for _ in range(3):
        page.keyboard.press("+")
    drawn(page)
    assert page.evaluate("(v => (v.to - v.from) * 8)(window.page.view)") == page.evaluate("window.page.span")
    page.keyboard.press("End")
    drawn(page)
    assert page.evaluate("window.page.view.to") == page.evaluate("window.page.span")
    for _ in range(5):
        page.keyboard.press("-")
    drawn(page)
    assert page.evaluate("[window.page.view.from, window.page.view.to]") == [0, page.evaluate("window.page.span")]


@pytest.mark.slow
def test_two_points_share_one_clock(page, folder):
    shown(page, folder / "two.html")
    first, second = page.evaluate("window.page.runs.map(r => r.makespan)")
    assert page.evaluate("window.page.span") == max(first, second)
    page.keyboard.press("End")
    drawn(page)
    assert page.locator("canvas.network").count() == 2
    theme = "document.documentElement.dataset.theme"
    page.evaluate(f"{theme} = 'dark'; addEventListener('beforeprint', () => window.printed = {theme})")
    page.pdf()
    assert page.evaluate(f"[window.printed, {theme}]") == ["light", "dark"]  # paper is white
    page.emulate_media(media="print")
    edges = """[...document.querySelectorAll("section.run")].map(run =>
        ["h2", ".scene", ".pane.gantt", ".below"].flatMap(name => {
            const box = run.querySelector(name).getBoundingClientRect();
            return [box.top, box.bottom];
        }))"""
    assert all(tops == sorted(tops) for tops in page.evaluate(edges))  # one below the other
    assert "topology=fabric" in page.inner_text("#runs")
