"""The command line: the only place that reads argv, prints, and turns errors into exit codes."""

import sys


def entry() -> None:
    """Console script."""
    from astrasim_py.cli.main import main

    sys.exit(main(sys.argv[1:]))
