"""Comparison of figures with stored pictures, whatever the version of FreeType or matplotlib.

Text is left out, and with it the layout that depends on its size; what is left is drawn, averaged over blocks of
pixels, and compared within a tolerance for antialiasing. ``UPDATE_PICTURES=1`` writes the pictures anew: look at them.
"""

from __future__ import annotations

import os
from pathlib import Path

import numpy as np

PICTURES = Path(__file__).parent / "pictures"
_DPI, _BLOCK = 72, 3
#: Of 255: the mean difference of two equal figures, and of all but a hundredth of their blocks.
_MEAN, _BLOCKS = 1.5, 48


def blocks(figure) -> np.ndarray:
    """uint8[h, w, 3]: a figure without its text, averaged over blocks of pixels."""
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.text import Text

    figure.set_layout_engine("none")
    for artist in [*figure.findobj(Text), *figure.legends, *(axes.get_legend() for axes in figure.axes)]:
        if artist is not None:
            artist.set_visible(False)
    for axes in figure.axes:
        if axes.get_label() == "<colorbar>":
            axes.set_visible(False)
        axes.tick_params(labelbottom=False, labelleft=False, labelright=False)
    figure.set_dpi(_DPI)
    canvas = FigureCanvasAgg(figure)
    canvas.draw()
    pixels = np.asarray(canvas.buffer_rgba())[..., :3].astype(float)
    height, width = (size // _BLOCK for size in pixels.shape[:2])
    pixels = pixels[: height * _BLOCK, : width * _BLOCK]
    return pixels.reshape(height, _BLOCK, width, _BLOCK, 3).mean(axis=(1, 3)).round().astype(np.uint8)


def difference(one: np.ndarray, other: np.ndarray) -> str:
    """How two pictures differ; empty if they are the same."""
    if one.shape != other.shape:
        return f"sizes {one.shape[:2]} and {other.shape[:2]}"
    apart = np.abs(one.astype(float) - other.astype(float)).max(axis=2)
    mean, most = apart.mean(), np.percentile(apart, 99)
    return "" if mean < _MEAN and most < _BLOCKS else f"mean difference {mean:.2f}, of a hundredth {most:.0f} or more"


def assert_picture(figure, name: str) -> None:
    """A figure looks like the stored picture of that name."""
    from PIL import Image

    drawn, path = blocks(figure), PICTURES / f"{name}.png"
    if os.environ.get("UPDATE_PICTURES"):
        PICTURES.mkdir(exist_ok=True)
        Image.fromarray(drawn).save(path, optimize=True)
    found = difference(drawn, np.asarray(Image.open(path).convert("RGB")))
    assert not found, f"{name}: {found}; if it should look otherwise, draw it anew with UPDATE_PICTURES=1"
