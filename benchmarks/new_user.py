"""Do what a new user does, in a fresh clone, and time it: ``python benchmarks/new_user.py [FOLDER]``.

README's first command; the tutorial, as it says; every recipe; every exercise of the class, with runs, pages and
answers. Ends with exit code 1 if anything fails. It takes some minutes, most of them for installing and compiling.
"""

import os
import re
import resource
import shlex
import subprocess
import sys
import tempfile
import time
from pathlib import Path

REPOSITORY = Path(__file__).resolve().parents[1]
BLOCK = re.compile(r"^```(\w+)[ ]?([^\n]*)\n(.*?)^```$", re.MULTILINE | re.DOTALL)
NAMED = re.compile(r"#\s+([\w./-]+\.(?:py|ya?ml|csv))\s*\n")


class User:
    """Types commands in a clone, and notes what they took and what failed."""

    def __init__(self, clone: Path) -> None:
        self.clone, self.failed, self.text = clone, [], ""
        self.environment = {**os.environ, "PATH": f"{clone}/.venv/bin:{os.environ['PATH']}"}
        self.environment["ASTRASIM_CACHE"] = str(clone / ".cache")

    def types(self, command: str, expected: int = 0) -> None:
        done = subprocess.run(
            ["bash", "-ec", command], cwd=self.clone, env=self.environment, capture_output=True, text=True
        )
        self.text = done.stdout
        if done.returncode != expected:
            self.failed.append(command)
            print(f"FAILED ({done.returncode}): {command}\n{done.stdout[-500:]}{done.stderr[-1500:]}")

    def follows(self, section: str) -> None:
        """The blocks of a section, in order; Python blocks share their names."""
        python = ""
        for kind, options, body in BLOCK.findall(section):
            named = NAMED.match(body)
            if named or kind == "json":
                path = self.clone / (named[1] if named else options)
                path.parent.mkdir(parents=True, exist_ok=True)
                path.write_text(body, "utf-8")
            elif kind == "python":
                python += body
                self.types(f"python -c {shlex.quote(python)}")
            elif kind == "sh":
                self.types(body, int(options.removeprefix("exit=") or 0))

    def solves(self, number: int) -> None:
        """An exercise: its scenario, its page, and every answer of the solution."""
        self.types(f"python -m astrasim_py lesson {number} --solution")
        text = self.text
        scenario = re.search(r"astrasim_py new (\w+)$", text, re.MULTILINE)[1]
        self.types(f"python -m astrasim_py scenarios/{scenario}.yaml --quiet")
        for command in re.findall(r"^ +(python -m astrasim_py view .*) --open$", text, re.MULTILINE):
            self.types(command)
        answers = re.findall(r"^(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?(?: [A-Za-z%/]+)?): ", text, re.MULTILINE)
        if len(answers) != 5:
            self.failed.append(f"lesson {number}: {len(answers)} answers")
        for question, answer in enumerate(answers, 1):
            self.types(f"python -m astrasim_py lesson {number} {question} {shlex.quote(answer)}")


def times() -> tuple[float, float]:
    used = resource.getrusage(resource.RUSAGE_CHILDREN)
    return time.monotonic(), used.ru_utime + used.ru_stime


def main(folder: str) -> int:
    clone = Path(folder) / "astrasim_py"
    subprocess.run(["git", "clone", "-q", REPOSITORY, clone], check=True)
    user = User(clone)
    first = BLOCK.search((clone / "README.md").read_text("utf-8"))[3]
    sections = (clone / "docs" / "recipes.md").read_text("utf-8").split("\n## ")[1:]
    steps = [
        ("README's first command", lambda: user.types(first)),
        ("the same again", lambda: user.types(first)),
        ("install the notebook", lambda: user.types("pip install -q '.[notebook]' '.[calibrate]'")),
        ("tutorial", lambda: user.types("cp docs/tutorial.ipynb . && jupyter execute tutorial.ipynb")),
        *((f"recipes: {one.splitlines()[0]}", lambda one=one: user.follows(one)) for one in sections),
        *((f"exercise {number}", lambda number=number: user.solves(number)) for number in range(1, 8)),
    ]
    print(f"{'step':42} {'s':>7} {'CPU s':>7}")
    for name, step in steps:
        wall, cpu = times()
        step()
        now, used = times()
        print(f"{name:42} {now - wall:7.1f} {used - cpu:7.1f}", flush=True)
    print(f"{len(user.failed)} failures")
    return 1 if user.failed else 0


if __name__ == "__main__":
    if len(sys.argv) > 1:
        sys.exit(main(sys.argv[1]))
    with tempfile.TemporaryDirectory() as folder:
        sys.exit(main(folder))
