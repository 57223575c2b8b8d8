"""Every example of the documentation runs, and prints what the page says.

In a page, blocks are executed in order in a folder of the page's own, which has a copy of ``scenarios/``:

* ``sh``: its lines are run; ``exit=N`` beside it is the exit code that is expected.
* a block whose first line is a comment with a file's name, or ``json`` with a name beside it, is written to that file;
  other ``python`` blocks are executed.
* ``text``: each of its lines must be in the output of the block before.

A block below the comment ``<!-- needs: … -->`` needs what only a user has, such as a cluster: it is not run, but its
commands must be understood. Every command of the package stands in a block of one of these kinds. Each section of the
recipes is a page of its own.
"""

from __future__ import annotations

import contextlib
import io
import re
import runpy
import shlex
import shutil
import sys
from pathlib import Path

import pytest

from astrasim_py.cli.main import main, parse

DOCS = Path(__file__).resolve().parents[2] / "docs"
PAGES = [DOCS.parent / "README.md", *sorted(DOCS.rglob("*.md"))]
BLOCK = re.compile(r"^(<!-- needs: [^\n]*-->\n+)?```(\w+)[ ]?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
COMMAND = "python -m astrasim_py"
#: Pages whose commands wait for their new text.
WAITING = {"cli.md", "engines.md"}
FILE = re.compile(r"#\s+([\w./-]+\.(?:py|ya?ml|csv))\s*\n")
RECIPES = (DOCS / "recipes.md").read_text("utf-8").split("\n## ")[1:]
TEXTS = {page.relative_to(DOCS.parent).as_posix(): page for page in PAGES if page.stem != "recipes"} | {
    f"recipes.md, {section.splitlines()[0]}": section for section in RECIPES
}


def squeezed(text: str) -> str:
    return " ".join(text.split())


def run_line(line: str) -> int:
    words = shlex.split(line)
    if words[:2] == ["mkdir", "-p"]:
        Path(words[2]).mkdir(parents=True, exist_ok=True)
        return 0
    if words[:3] == ["python", "-m", "astrasim_py"]:
        runs = words[3] == "run" or words[3].endswith(".yaml")
        # One process: starting more would take longer than these runs.
        return main([*words[3:], *(["--jobs", "1"] if runs else [])])
    if words[0] == "python" and words[1].endswith(".py"):
        runpy.run_path(words[1])
        return 0
    raise AssertionError(f"the test does not know how to run: {line}")


@pytest.mark.slow
@pytest.mark.parametrize("page", TEXTS)
def test_examples_run_and_print_what_the_page_says(page, tmp_path, monkeypatch, package):
    text = TEXTS[page] if isinstance(TEXTS[page], str) else TEXTS[page].read_text("utf-8")
    shutil.copytree(DOCS.parent / "scenarios", tmp_path / "scenarios")
    (tmp_path / "astrasim_py").symlink_to(package)
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "path", list(sys.path))
    sys.path_importer_cache.pop("my", None)  # of the page before, in its folder
    output, namespace = "", {"__name__": "__main__"}
    for needs, kind, options, body in BLOCK.findall(text):
        if needs:
            continue
        named = re.match(r"(\S+)", options) if kind == "json" else FILE.match(body)
        stream = io.StringIO()
        if named:
            path = tmp_path / named[1]
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_text(body, "utf-8")
        elif kind == "python":
            with contextlib.redirect_stdout(stream):
                exec(compile(body, f"{page}: python block", "exec"), namespace)
            output = stream.getvalue()
        elif kind == "sh":
            expected = int(options.removeprefix("exit=") or 0)
            with contextlib.redirect_stdout(stream), contextlib.redirect_stderr(stream):
                codes = [run_line(line) for line in body.splitlines() if line.strip()]
            output = stream.getvalue()
            assert max(codes) == expected, f"{body}gave {codes}:\n{output}"
        elif kind == "text":
            lines = [squeezed(line) for line in output.splitlines()]
            for line in filter(None, (squeezed(line) for line in body.splitlines())):
                assert any(line in there for there in lines), f"not printed: {line}\n{output}"


def shell_lines(body: str) -> list[str]:
    """The lines of a shell block, without comments and prompts; a line may go on in the next."""
    lines = (line.strip().removeprefix("$ ") for line in body.replace("\\\n", " ").splitlines())
    return [line for line in lines if line and not line.startswith("#")]


@pytest.mark.parametrize(
    "page",
    [page for page in PAGES if page.name not in WAITING],
    ids=lambda page: page.relative_to(DOCS.parent).as_posix(),
)
def test_every_command_is_run_or_says_what_it_needs(page):
    for needs, kind, _, body in BLOCK.findall(page.read_text("utf-8")):
        if kind != "sh" and COMMAND in body:
            assert needs, f"a test can run sh; say what this needs, or make it sh:\n{body}"
        if not needs:
            continue
        for line in shell_lines(body):
            words = shlex.split(line)
            if words[:3] == COMMAND.split():
                assert parse(words[3:]) is not None, line


def test_links_between_pages_lead_somewhere():
    broken = []
    for page in PAGES:
        for target in re.findall(r"\]\(([^)#\s]+)(?:#[^)]*)?\)", page.read_text("utf-8")):
            if "://" not in target and not (page.parent / target).exists():
                broken.append(f"{page.name}: {target}")
    assert not broken
