"""Fit four constants to each source of published step times of training, and show how far off closed forms are then.

The constants are scales of host time and of matrix products, the share of NIC bandwidth, and the cost of overlap with
gradients. An interval has the values that the rows do not tell from the fitted one; a constant that they do not
determine keeps its value. Beside the errors on the same rows stand those of rows predicted with constants of the other
four fifths.
"""

import argparse

from astrasim_py.cli import validate_training


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("rows", metavar="ROWS.csv", help="step times of training, your own or published")
    validate_training.rows_options(parser)


def run(args: argparse.Namespace) -> int:
    return validate_training.report_errors(args, calibrate=True)
