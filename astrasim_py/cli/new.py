"""Copy a packaged lesson to start from; without NAME, list the lessons."""

from __future__ import annotations

import argparse


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("name", nargs="?", metavar="NAME")
    parser.add_argument("folder", nargs="?", default=".", metavar="FOLDER", help="where to; here by default")


def run(args: argparse.Namespace) -> int:
    """Copy or list."""
    from astrasim_py.study import lessons

    if args.name is None:
        for name, line in lessons.listed():
            print(f"{name:<24} {line}".rstrip())
        return 0
    for path in lessons.copy(args.name, args.folder):
        print(path)
    return 0
