"""The page of docs/torus.yaml, which the site shows first: simulated anew where it is wanted."""

import contextlib
import io
import shutil
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path

from astrasim_py.cli.main import main

SCENARIO = Path(__file__).with_name("torus.yaml")


def write_page(path: Path) -> None:
    """Run the scenario and write its page. Raises RuntimeError: it cannot be run."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with _results() as results:
        _do("view", "torus", "--out", results, "-o", str(path))


@contextlib.contextmanager
def served() -> Iterator[str]:
    """The address of the page over a live engine, which runs until the end of the context."""
    with _results() as results:
        command = [sys.executable, "-m", "astrasim_py", "view", "torus", "--out", results, "--serve"]
        with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
            assert process.stdout is not None
            try:
                yield process.stdout.readline().strip()
            finally:
                process.terminate()


@contextlib.contextmanager
def _results() -> Iterator[str]:
    """A folder of the results of the scenario."""
    with tempfile.TemporaryDirectory() as results:
        _do("run", str(SCENARIO), "--out", results, "--quiet", "--jobs", "1")
        yield results


def _do(*words: str) -> None:
    with contextlib.redirect_stdout(io.StringIO()):
        if main(words):
            raise RuntimeError(f"{' '.join(words)} fails")


def pictures() -> Iterator[tuple[str, bytes]]:
    """PNG by name: of the page, and of the live one beside which a link is broken."""
    from playwright.sync_api import sync_playwright

    with tempfile.TemporaryDirectory() as folder, sync_playwright() as driver:
        chromium = driver.chromium.launch(executable_path=shutil.which("chromium"), args=["--no-sandbox"])
        page = chromium.new_page(viewport={"width": 1366, "height": 720})
        path = Path(folder) / "torus.html"
        write_page(path)
        page.goto(path.as_uri())
        yield "page.png", _picture(page)
        with served() as address:
            page.goto(address)
            page.wait_for_selector("#change")
            page.fill("#find", "0->1")
            page.press("#find", "Enter")
            page.click("text=Break it")
            while page.evaluate("window.live.answered") != 1:
                page.wait_for_timeout(50)
            page.check("#change input[type=checkbox]")
            yield "page_live.png", _picture(page)
        chromium.close()


def _picture(page) -> bytes:
    """Of a page in a browser, a little after the middle of its run."""
    page.wait_for_selector("body[data-ready]")
    page.evaluate("window.page.time = 0.53 * window.page.span, window.page.dirty = true, 0")
    page.evaluate("new Promise(done => requestAnimationFrame(() => requestAnimationFrame(done)))")
    return page.screenshot()
