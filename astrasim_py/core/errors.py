"""Two families of errors: the user's (`AstraError` and below) and ours (`InternalError`).

Every error is rebuilt by ``type(e)(*e.args)``: SimPy and process pools rely on that.
"""

from collections.abc import Sequence

EXIT_OK = 0
EXIT_CHECK_FAILED = 1
EXIT_USAGE = 2
EXIT_TRACE = 3
EXIT_STUCK = 4
EXIT_OUTPUT = 5
EXIT_INTERNAL = 70
EXIT_INTERRUPTED = 130

#: A sweep exits with the worst of its points: earlier in this tuple is worse.
SEVERITY = (EXIT_INTERRUPTED, EXIT_INTERNAL, EXIT_OUTPUT, EXIT_TRACE, EXIT_STUCK, EXIT_USAGE, EXIT_CHECK_FAILED, 0)

#: Most characters of a line that tells an error.
_LONGEST = 2000


class AstraError(Exception):
    """An error that the user can fix.

    `place`: ``file:line:col: key`` or ``file: node 7``; empty when there is none. `problem`: the offending value and
    the rule that it breaks. `remedy`: what to write instead; may be empty.
    """

    exit_code = EXIT_USAGE

    def __init__(self, place: str, problem: str, remedy: str = "") -> None:
        super().__init__(place, problem, remedy)
        self.place, self.problem, self.remedy = place, problem, remedy

    def __str__(self) -> str:
        text = f"{self.place}: {self.problem}" if self.place else self.problem
        return f"{text}; {self.remedy}" if self.remedy else text

    def lines(self) -> list[str]:
        """One line per error, for printing; without the middle of one that repeats a very long word of the user's."""
        line = " ".join(str(self).splitlines())
        return [line if len(line) <= _LONGEST else f"{line[: _LONGEST // 2]} … {line[-_LONGEST // 2 :]}"]


class UsageError(AstraError):
    """Bad command line."""


class UnitError(AstraError):
    """A quantity that cannot be read: no unit, wrong unit, negative, not finite."""


class ScenarioError(AstraError):
    """A scenario that breaks its schema or contradicts itself."""


class TopologyError(AstraError):
    """A topology that cannot be built or routed."""


class TraceError(AstraError):
    """A Chakra ET that cannot be read or breaks the rules of the representation."""

    exit_code = EXIT_TRACE


class AlgorithmError(AstraError):
    """A collective algorithm that is ill-formed, wrong, or undefined for the group asked for."""

    exit_code = EXIT_TRACE


class FoldError(AstraError):
    """A requested fold of ranks that are not symmetric, or cannot be shown to be."""


class SimulationError(AstraError):
    """An error that only the run can detect (for example unequal message sizes)."""

    exit_code = EXIT_STUCK


class CheckFailed(AstraError):
    """A check that the user asked for found something."""

    exit_code = EXIT_CHECK_FAILED


class OutputError(AstraError):
    """Output that cannot be written."""

    exit_code = EXIT_OUTPUT


class ErrorList(AstraError):
    """Several errors found in one pass; exits with the worst of them."""

    def __init__(self, errors: Sequence[AstraError]) -> None:
        Exception.__init__(self, tuple(errors))
        self.errors = tuple(errors)
        self.place, self.problem, self.remedy = "", "\n".join(str(e) for e in self.errors), ""

    @property
    def exit_code(self) -> int:  # type: ignore[override]  # of a class attribute: the worst of them decides
        return worst(e.exit_code for e in self.errors)

    def __str__(self) -> str:
        return self.problem

    def lines(self) -> list[str]:
        return [line for error in self.errors for line in error.lines()]


class InternalError(Exception):
    """A broken promise of our own code; the user is asked to report it."""


def worst(codes) -> int:
    """The worst of some exit codes, in the order of `SEVERITY`."""
    return min(codes, key=SEVERITY.index, default=EXIT_OK)
