"""Fit four constants to each source of published step times of training, and show how far off closed forms are then.

The constants are scales of host time and of matrix products, the share of NIC bandwidth, and the cost of overlap with
gradients. Beside the errors on the same rows stand those of rows predicted with constants of the other four fifths.
"""

import argparse

from astrasim_py.cli import validate_training

arguments = validate_training.arguments


def run(args: argparse.Namespace) -> int:
    return validate_training.run(args, calibrate=True)
