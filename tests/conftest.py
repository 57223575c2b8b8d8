"""Fixtures shared by all tests."""

from __future__ import annotations

import os
import signal
from pathlib import Path

import pytest
from hypothesis import HealthCheck, settings

if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
    # Started in the background of a shell: processes that tests start would ignore Ctrl-C, too.
    signal.signal(signal.SIGINT, signal.default_int_handler)

# pytest-xdist sets it in its workers; tables are as wide as it says.
os.environ.pop("COLUMNS", None)

settings.register_profile("ci", max_examples=60, deadline=None, suppress_health_check=[HealthCheck.too_slow])
settings.register_profile("nightly", max_examples=5000, deadline=None)
settings.load_profile(os.environ.get("HYPOTHESIS_PROFILE", "ci"))


#: Folders of tests that run the compiled engine.
COMPILED = {"astra_sim", "bad", "cli", "docs", "engine", "optimizer", "promises", "pytorch", "scenario", "study"}


def pytest_collection_modifyitems(items):
    """In the nightly profile all tests run, each as long as its examples take."""
    nightly = settings.get_current_profile_name() == "nightly"
    for item in items:
        if nightly:
            item.add_marker(pytest.mark.timeout(0), append=False)
        elif item.get_closest_marker("nightly"):
            item.add_marker(pytest.mark.skip(reason="nightly only"))


@pytest.fixture(autouse=True, scope="session")
def _own_cache(request, tmp_path_factory):
    """Tests neither use nor fill the user's cache; what they compile is kept beside them, before the first test."""
    before = os.environ.get("ASTRASIM_CACHE")
    folder = tmp_path_factory.mktemp("cache")
    here = Path(__file__).parent
    kernels = here / "__pycache__" / "kernels"
    kernels.mkdir(parents=True, exist_ok=True)
    (folder / "kernels").symlink_to(kernels, target_is_directory=True)
    os.environ["ASTRASIM_CACHE"] = str(folder)
    if any(COMPILED & set(item.path.relative_to(here).parts) for item in request.session.items):
        import astrasim_py as ap

        two = ap.build_topology(shape="ring", npus=2, bandwidth="1 GB/s", latency="1 us")
        ap.simulate(ap.collective("barrier", "0 B", two), engine="compiled")
    yield
    if before is None:
        del os.environ["ASTRASIM_CACHE"]
    else:
        os.environ["ASTRASIM_CACHE"] = before


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
