"""What ASTRA-sim does to workloads and messages that is not physics, as a table; `planner.QUIRKS` has that of its
native collectives. Every quirk met is warned about once.

A quirk is reproduced wherever ASTRA-sim yields a number; where it hangs, crashes or loses work there is an error
instead. ``--corrected`` does without all of them.
"""

from __future__ import annotations

from dataclasses import dataclass

#: Where all of them are explained.
PAGE = "docs/astra_sim.md"


@dataclass(frozen=True, slots=True)
class Quirk:
    """One quirk: what ASTRA-sim does, and what the corrected physics is."""

    id: str
    does: str
    corrected: str


QUIRKS: dict[str, Quirk] = {
    quirk.id: quirk
    for quirk in (
        Quirk(
            "lowest-dimension",
            "a message pays only for the lowest dimension in which its ends differ",
            "it pays for every hop",
        ),
        Quirk(
            "store-and-forward",
            "every hop receives the whole message before it sends it on",
            "head and tail move on their own (cut-through)",
        ),
        Quirk(
            "free-concurrency",
            "messages never share bandwidth, so that chunks in flight together divide the time",
            "the same: choose congestion_aware for links that are shared",
        ),
        Quirk("zero-duration", "a recorded duration of 0 takes 1 ns", "it takes no time"),
        Quirk(
            "skipped-node",
            "INVALID nodes and roofline nodes of tensor_size 0 are skipped, and their children wait for the next "
            "completion of any other node of the rank",
            "children start at once",
        ),
        Quirk(
            "broadcast-replayed",
            "a broadcast is not simulated: it takes its recorded duration",
            "it is simulated like every other collective",
        ),
        Quirk(
            "injected-size",
            "messages of an injected algorithm have the sizes of its files, whatever the collective's size is",
            "sizes in chunks follow the collective",
        ),
        Quirk(
            "unsorted-group",
            "an injected algorithm takes its file by sorted position in the group, and its peers by the order given",
            "both follow the order given",
        ),
        Quirk(
            "unofficial-backend",
            "it refuses several dimensions in this backend; followed is an unmerged branch of it",
            "the same",
        ),
    )
}


def warning(quirk: str, detail: str = "") -> str:
    """The line that says that a quirk was met."""
    text = f"quirk {quirk}: ASTRA-sim: {QUIRKS[quirk].does}"
    return f"{text} ({detail})" if detail else text
