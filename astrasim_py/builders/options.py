"""Checks of the options that builders take."""

from __future__ import annotations

from astrasim_py.core.errors import AlgorithmError


def check_count(value: object, name: str, place: str) -> int:
    """A whole number from 1."""
    if type(value) is not int or value < 1:
        raise AlgorithmError(place, f"{name} is {value!r}, not a whole number from 1", f"write e.g. {name}: 4")
    return value


def check_power_of_two(ranks: int, place: str, instead: str) -> int:
    """log2 of a power of two."""
    if ranks & (ranks - 1):
        raise AlgorithmError(place, f"{ranks} is not a power of two, which this algorithm needs", f"use {instead}")
    return ranks.bit_length() - 1
