"""The page that the site shows first, and the pictures of the page: as the page is now."""

import io
import runpy
import shutil
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

DOCS = Path(__file__).parents[2] / "docs"
#: Of 255: mean difference of blocks of pixels, whatever fonts Chromium has.
MEAN = 4.0


@pytest.fixture(scope="module")
def torus():
    return runpy.run_path(str(DOCS / "torus_page.py"))


def test_the_page_of_the_site_is_small_and_complete(torus, tmp_path):
    """It is written where the site is built, and shown in its first page."""
    torus["write_page"](tmp_path / "torus.html")
    text = (tmp_path / "torus.html").read_text("utf-8")
    assert text.count('class="run"') == 1 and len(text) < 80_000
    assert 'src="torus.html#embed"' in (DOCS / "index.md").read_text("utf-8")


def blocks(png: bytes) -> np.ndarray:
    pixels = np.asarray(Image.open(io.BytesIO(png)).convert("RGB")).astype(float)
    height, width = (side // 12 * 12 for side in pixels.shape[:2])
    return pixels[:height, :width].reshape(height // 12, 12, width // 12, 12, 3).mean(axis=(1, 3))


@pytest.mark.slow
def test_pictures_of_the_page_are_of_this_page(torus):
    pytest.importorskip("playwright.sync_api")
    if shutil.which("chromium") is None:
        pytest.skip("no Chromium on this machine")
    for name, png in torus["pictures"]():
        stored = blocks((DOCS / "figures" / name).read_bytes())
        assert np.abs(blocks(png) - stored).mean() < MEAN, f"{name} is old: python docs/refresh.py pages"
