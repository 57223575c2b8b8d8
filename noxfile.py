"""The tests on every Python of this machine, with the newest and with the lowest versions that pyproject.toml permits.

``nox`` runs all of it; ``nox -s "tests-3.12(lowest-direct)" -- tests/system`` a part. The nightly run is
``HYPOTHESIS_PROFILE=nightly nox``. A Python is there if ``python3.12`` runs (pyenv: set PYENV_VERSION); others are
skipped, and nox says so.
"""

import shutil
from pathlib import Path

import nox

PYTHONS = ["3.11", "3.12", "3.13", "3.14"]

nox.needs_version = ">=2025.2.9"
nox.options.default_venv_backend = "uv"
nox.options.download_python = "never"
nox.options.error_on_missing_interpreters = False


@nox.session(python=PYTHONS)
@nox.parametrize("versions", ["highest", "lowest-direct"], ids=["highest", "lowest-direct"])
def tests(session: nox.Session, versions: str) -> None:
    """The tests in this clone."""
    # Only wheels: what must be built for a Python is not meant for it.
    session.install("--resolution", versions, "--only-binary", ":all:", "-e", ".[test]")
    session.run("python", "-m", "pytest", *session.posargs or ["-n", "auto"])


@nox.session(python=PYTHONS)
def wheel(session: nox.Session) -> None:
    """The tests outside the clone, with the package installed from its wheel."""
    folder = Path(session.create_tmp()).resolve()
    # By way of the source distribution, so that nothing of earlier builds gets in.
    session.run("uv", "build", "-q", "--clear", "-o", str(folder / "dist"), ".")
    (built,) = (folder / "dist").glob("*.whl")
    session.install(f"astrasim-py[test] @ {built.as_uri()}")
    outside = folder / "outside"
    shutil.rmtree(outside, ignore_errors=True)
    left = shutil.ignore_patterns(".*", "astrasim_py*", "build", "results", "__pycache__")
    shutil.copytree(".", outside, ignore=left)
    session.chdir(outside)
    session.run("python", "-m", "pytest", *session.posargs or ["-n", "auto"])
