"""Colours of figures and of the page: which of them readers can tell apart, colour-blind ones as well."""

from __future__ import annotations

from itertools import combinations

import numpy as np
import pytest

from astrasim_py.report import figure_style as style
from astrasim_py.report.page import palette

#: Machado, Oliveira & Fernandes (2009), severity 1.0, on linear RGB.
SEEN = {
    "normal": np.eye(3),
    "protanopia": np.array(
        [[0.152286, 1.052583, -0.204868], [0.114503, 0.786281, 0.099216], [-0.003882, -0.048116, 1.051998]]
    ),
    "deuteranopia": np.array(
        [[0.367322, 0.860646, -0.227968], [0.280085, 0.672501, 0.047413], [-0.011820, 0.042940, 0.968881]]
    ),
}
_XYZ = np.array(
    [[0.4124564, 0.3575761, 0.1804375], [0.2126729, 0.7151522, 0.0721750], [0.0193339, 0.1191920, 0.9503041]]
)
_WHITE = np.array([0.95047, 1.0, 1.08883])


def lab(colour: str, eye: np.ndarray) -> np.ndarray:
    """CIE L*a*b* of an sRGB colour as an eye sees it."""
    part = np.array([int(colour[i : i + 2], 16) for i in (1, 3, 5)]) / 255
    linear = eye @ np.where(part <= 0.04045, part / 12.92, ((part + 0.055) / 1.055) ** 2.4)
    xyz = _XYZ @ np.clip(linear, 0, 1) / _WHITE
    x, y, z = np.where(xyz > 216 / 24389, np.cbrt(xyz), (24389 / 27 * xyz + 16) / 116)
    return np.array([116 * y - 16, 500 * (x - y), 200 * (y - z)])


def nearest(colours) -> float:
    """The least distance in L*a*b* of two of these colours, for any eye; a just visible difference is 2.3."""
    pairs = [(lab(a, eye), lab(b, eye)) for a, b in combinations(colours, 2) for eye in SEEN.values()]
    return min(float(np.linalg.norm(a - b)) for a, b in pairs)


def test_a_dozen_series_have_colours_that_all_readers_tell_apart():
    assert len(style.COLOURS) == 12 and nearest(style.COLOURS) > 17
    assert len(style.FILLS) >= 9 and nearest(style.FILLS) > 17


def test_series_beyond_the_colours_differ_by_marker_or_dashes():
    pens = [style.pen(index, 60) for index in range(60)]
    assert len({(look["color"], look["marker"]) for look in pens}) == 60


def test_parts_of_a_rank_have_colours_that_all_readers_tell_apart():
    assert nearest((*style.COMPUTE_COLOURS, *style.COMMUNICATION_COLOURS)) > 17


@pytest.mark.parametrize("kind", style.TYPE_COLOURS)
def test_the_page_has_the_colours_of_figures(kind):
    assert palette()[kind] == style.TYPE_COLOURS[kind]
