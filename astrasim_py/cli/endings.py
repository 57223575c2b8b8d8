"""What a command line ends with after an error: an exit code, and lines for a person."""

from astrasim_py.core import errors


def ends(error: BaseException) -> bool:
    """Whether an error is of those that are not for us to tell."""
    if isinstance(error, (Exception, KeyboardInterrupt, SystemExit)):
        return False
    from astrasim_py.core.registry import stops

    return stops(error)


def told(error: BaseException) -> tuple[int, list[str]]:
    """The exit code of an error, and the lines to print."""
    if isinstance(error, errors.AstraError):
        return error.exit_code, error.lines()
    if isinstance(error, KeyboardInterrupt):
        return errors.EXIT_INTERRUPTED, ["interrupted"]
    if isinstance(error, MemoryError):
        return errors.EXIT_INTERNAL, ["out of memory; use fewer NPUs, a lower --record level or --jobs 1"]
    from astrasim_py.core.registry import own_failure

    if reason := own_failure(error):
        return errors.EXIT_USAGE, [reason]
    text = " ".join(f"{type(error).__name__}: {error}".split())
    problem = "this is a defect of astrasim_py, please report it (ASTRASIM_DEBUG=1 shows where)"
    return errors.EXIT_INTERNAL, [f"{problem}: {text}"]
