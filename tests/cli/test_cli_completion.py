"""Scripts of completion are made from the parsers; the one of bash completes, those of others can be read."""

from __future__ import annotations

import shutil
import subprocess
import sys

import pytest

from astrasim_py.cli.main import main
from astrasim_py.cli.parsers import every_command
from astrasim_py.cli.verbs import VERBS

ASK = """\
source "$1"; shift; COMP_WORDS=(astrasim-py "$@"); COMP_CWORD=$#; _astrasim_py; printf '%s\\n' "${COMPREPLY[@]}"
"""


@pytest.fixture(scope="module")
def scripts(tmp_path_factory):
    """Script of a shell, by its name."""
    folder = tmp_path_factory.mktemp("completion")
    for shell in ("bash", "zsh", "fish"):
        command = [sys.executable, "-m", "astrasim_py", "list", "completion", shell]
        (folder / shell).write_bytes(subprocess.run(command, capture_output=True, check=True).stdout)
    return lambda shell: folder / shell


@pytest.fixture
def completed(scripts, tmp_path):
    """What bash shows for words, of which the last is completed, in a folder with a file and a result."""
    (tmp_path / "ring.yaml").touch()
    (tmp_path / "results" / "stored").mkdir(parents=True)

    def ask(*words: str) -> list[str]:
        command = ["bash", "--norc", "-c", ASK, "bash", scripts("bash"), *words]
        return subprocess.run(command, capture_output=True, text=True, check=True, cwd=tmp_path).stdout.split()

    return ask


@pytest.mark.skipif(shutil.which("bash") is None, reason="no bash")
@pytest.mark.parametrize(
    ("words", "expected"),
    [
        ("sy", ["synthesize"]),
        ("ri", ["ring.yaml"]),
        ("results ", ["list", "explain", "compare", "plot", "view"]),
        ("measured validate c", ["collectives", "cases"]),
        ("help measured validate c", ["collectives", "cases"]),
        ("trace co", ["compare", "convert"]),
        ("trace convert ", ["astra_sim_text", "pytorch"]),
        ("trace convert pytorch --ki", ["--kineto"]),
        ("run ring.yaml --rec", ["--record"]),
        ("run ring.yaml --record ", ["summary", "links", "nodes", "messages"]),
        ("run ring.yaml --out ri", ["ring.yaml"]),
        ("explain --worst sto", ["stored"]),
        ("results plot sto", ["stored"]),
        ("verify sto", []),
        ("new latency", ["latency_or_bandwidth"]),
        ("run ring.yaml --top ", []),
        ("explain --wor", ["--worst"]),
        ("list completion ", ["bash", "zsh", "fish"]),
        ("list plo", ["plots"]),
    ],
)
def test_bash_completes(completed, words, expected):
    assert completed(*words.split(" ")) == expected


@pytest.mark.parametrize("shell", ["bash", "zsh", "fish"])
def test_scripts_have_every_option_and_can_be_read(scripts, shell):
    text = scripts(shell).read_text("utf-8")
    options = {
        option for command in every_command() for action in command.arguments for option in action.option_strings
    }
    assert len(options) > 150 and not [name for name in (*VERBS, "astra_sim_text") if name not in text]
    assert not [name for name in options if (name if shell != "fish" else name.lstrip("-")) not in text]
    if shutil.which(shell) is not None:
        subprocess.run([shell, "-n", scripts(shell)], check=True)


def test_a_shell_that_is_unknown_is_refused(capsys):
    assert main(["list", "completion", "tcsh"]) == 2
    assert "write one of bash, zsh, fish" in capsys.readouterr().err
