"""Microseconds: ``µs`` for people, ``us`` where it is typed or cannot be encoded."""

from __future__ import annotations

import subprocess
import sys

import pytest

from astrasim_py.core.units import format_time, parse_time, typed_time


@pytest.mark.parametrize("unit", ["us", "\u00b5s", "\u03bcs"])
def test_both_signs_of_micro_and_the_letter_are_read(unit):
    assert parse_time(f"1.5 {unit}") == 1_500_000


@pytest.mark.parametrize("ps", [1, 999, 1_500, 2_345_678, 10**9, 10**13])
def test_people_read_micro_and_type_a_letter(ps):
    assert typed_time(ps).isascii() and typed_time(ps) == format_time(ps).replace("\u00b5", "u")
    assert parse_time(format_time(ps)) == parse_time(typed_time(ps)) == pytest.approx(ps, rel=1e-3)


@pytest.mark.parametrize(("encoding", "shown"), [("ascii", b"2.5 us - 1 x ?"), ("utf-8", "2.5 µs – 1 × ≥".encode())])
def test_a_stream_shows_what_its_encoding_has(encoding, shown):
    code = (
        "from astrasim_py.cli.main import _usable_streams; _usable_streams(); "
        "print('2.5 \\u00b5s \\u2013 1 \\u00d7 \\u2265')"
    )
    ended = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, check=True, env={"PYTHONIOENCODING": encoding, **_paths()}
    )
    assert ended.stdout.strip() == shown and not ended.stderr


def _paths() -> dict[str, str]:
    return {"PYTHONPATH": ":".join(sys.path)}
