"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import signal
import tempfile
from collections import Counter
from pathlib import Path

import limits
import pytest
import warm
from hypothesis import HealthCheck, settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a shell: processes that tests start would ignore Ctrl-C, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# pytest-xdist sets it in its workers; tables are as wide as it says.
os.environ.pop("COLUMNS", None)

settings.register_profile("ci", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("nightly", max_examples=5000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))
NIGHTLY = settings.get_current_profile_name() == "nightly"

#: Folders of tests that run the compiled engine.
COMPILED = {
    *("astra_sim", "bad", "cli", "docs", "engine", "exploration", "inspection", "optimizer", "preparation", "promises"),
    *("pytorch", "results", "runs", "scenario", "validation"),
}
#: Tests from which on all that any of them calls is compiled before the first.
MANY = 500
HERE = Path(__file__).parent
#: Compiled functions that were met during the tests; those of workers, too.
_late: set[str] = set()


def pytest_configure(config):
    """Tests neither use nor fill the user's cache; what they compile is kept beside them."""
    warm.KERNELS.mkdir(parents=True, exist_ok=True)
    cache = tempfile.TemporaryDirectory(prefix="astrasim-tests-")
    config.add_cleanup(cache.cleanup)
    Path(cache.name, "kernels").symlink_to(warm.KERNELS, target_is_directory=True)
    os.environ["ASTRASIM_CACHE"] = cache.name
    if not NIGHTLY and hasattr(signal, "setitimer"):
        config.pluginmanager.register(limits.Plugin())


def pytest_collection_modifyitems(items):
    """In the nightly profile all tests run, each as long as its examples take."""
    for item in items:
        if not NIGHTLY and item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.skip(reason="nightly only"))


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_runtestloop(session):
    """Compile before the first test, which has its limits. The process that distributes tests to workers has none."""
    items = getattr(session, "items", ())
    if not items:
        return (yield)
    rooms = {part for item in items for part in item.path.relative_to(HERE).parts}
    if len(items) >= MANY:
        warm.compile_all()
    elif rooms & COMPILED:
        warm.engine()
    before = warm.kept()
    done = yield
    _late.update(warm.kept() - before)
    return done


def pytest_sessionfinish(session):
    if hasattr(session.config, "workeroutput"):
        session.config.workeroutput["late"] = sorted(_late)


@pytest.hookimpl(optionalhook=True)
def pytest_testnodedown(node):
    _late.update(getattr(node, "workeroutput", {}).get("late", ()))


def pytest_terminal_summary(terminalreporter):
    """Say which tests were skipped wholesale, and what `warm` does not know of."""
    reasons = Counter(str(report.longrepr[2]) for report in terminalreporter.stats.get("skipped", ()))
    for reason, count in reasons.most_common():
        terminalreporter.write_line(f"skipped {count}: {reason.removeprefix('Skipped: ')}")
    if _late:
        terminalreporter.write_line(f"compiled during the tests: {', '.join(sorted(_late))} (see tests/warm.py)")


@pytest.fixture(scope="session")
def golden() -> Path:
    """Folder with other systems' files; tests that need it are skipped without it."""
    folder = os.environ.get("ASTRASIM_GOLDEN")
    if not folder:
        pytest.skip("ASTRASIM_GOLDEN is not set")
    path = Path(folder)
    if not path.is_dir():
        pytest.fail(f"ASTRASIM_GOLDEN={folder} is not a folder")
    return path


@pytest.fixture(scope="session")
def repo() -> Path:
    """Root of the checkout; the package may be installed elsewhere."""
    return Path(__file__).resolve().parents[1]


@pytest.fixture(scope="session")
def package() -> Path:
    """Folder of the package that is tested."""
    import astrasim_py

    return Path(astrasim_py.__file__).parent
