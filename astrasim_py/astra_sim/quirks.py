"""Behaviour of ASTRA-sim that is not physics. Every quirk met is warned about once.

A quirk is reproduced wherever ASTRA-sim yields a number; where it hangs, crashes or loses work there is an error
instead. ``--corrected`` has none of them; `PAGE` says what it does instead.
"""

import numpy as np

from astrasim_py.astra_sim.native_algorithms import LOCAL_DELAY_NS
from astrasim_py.chakra.schema import MISSING
from astrasim_py.chakra.trace import ExecutionTrace

#: Where all of them are named; the site has there a table of `QUIRKS` beside `CORRECTED`.
PAGE = "docs/reference/astra_sim.md"

#: Message of each; first of workloads and messages, then of native collectives.
QUIRKS = {
    "lowest-dimension": "ASTRA-sim: a message pays only for the lowest dimension in which its ends differ",
    "store-and-forward": "ASTRA-sim: every hop receives the whole message before it sends it on",
    "free-concurrency": "ASTRA-sim: messages never share bandwidth, so that chunks in flight together divide the time",
    "zero-duration": "ASTRA-sim: a recorded duration of 0 takes 1 ns",
    "skipped-node": (
        "ASTRA-sim: INVALID nodes and roofline nodes of tensor_size 0 are skipped, and their children wait "
        "for the next completion of any other node of the rank"
    ),
    "broadcast-replayed": "ASTRA-sim: a broadcast is not simulated: it takes its recorded duration",
    "injected-size": (
        "ASTRA-sim: messages of an injected algorithm have the sizes of its files, whatever the size of the collective"
    ),
    "injected-order": (
        "ASTRA-sim: nodes of an injected algorithm that become ready together are issued in the order of a C++ hash set"
    ),
    "own-attributes": "ASTRA-sim: attributes that only this package writes are not read",
    "unsorted-group": (
        "ASTRA-sim: an injected algorithm takes its file by sorted position in the group, and its peers by "
        "the order given"
    ),
    "unofficial-backend": (
        "ASTRA-sim: it refuses several dimensions in this backend; an unmerged branch of it is followed"
    ),
    "least-chunk": (
        "a collective with chunks of fewer bytes than there are NPUs runs as if each chunk had one byte per NPU: "
        "ASTRA-sim raises its size"
    ),
    "rounded-up": (
        "preferred-dataset-splits does not divide a collective: ASTRA-sim runs one more chunk of full size for the "
        "remainder"
    ),
    "lost-remainder": (
        "the NPUs of a dimension do not divide a chunk: ASTRA-sim truncates messages and never sends the rest"
    ),
    "halving-odd": "halvingDoubling truncates odd messages twice: its second half is smaller than its first",
    "halving-reduction": (
        "halvingDoubling charges the reduction of all messages received but the last, each by the size of the next one"
    ),
    "direct-overlap": "direct charges the reductions of messages that arrive together as if they ran at the same time",
    "direct-window": (
        "direct with a window charges the reduction of some received messages only, by their order of arrival"
    ),
    "tree-end": "doubleBinaryTree ends on an inner NPU when it sends to its children, not when they have the data",
    "tree-down": "doubleBinaryTree charges inner NPUs a reduction on the way down, too",
    "tree-only-reduces": (
        "doubleBinaryTree knows all_reduce only: ASTRA-sim runs one of the phase's size in place of other collectives"
    ),
    "no-memory-bandwidth": "local-mem-bw is missing: ASTRA-sim charges nothing for local reductions",
    "local-delay": (
        f"a group smaller than the world has an endpoint delay of {LOCAL_DELAY_NS} ns, whatever endpoint-delay says"
    ),
    "local-ring": (
        "a group smaller than the world runs a ring over its members where the implementation lists several words"
    ),
    "local-window": "direct on a group smaller than the world charges reductions of other messages than on the world",
    "half-queues": (
        "an all_reduce uses the first half of the queues of a dimension only, and on the way back the second half"
    ),
    "whole": "one* implementations run one logical algorithm over NPU ids, whatever the dimensions",
    "ignored-words": "words after a one* implementation are ignored",
    "short-list": (
        "an implementation list is shorter than the network: ASTRA-sim never communicates in the dimensions beyond it"
    ),
    "shared-bus": "model-shared-bus is reproduced from one recorded setting only",
    "no-optimization": (
        "collective-optimization is missing, and ASTRA-sim leaves it to chance: in one dimension it makes no difference"
    ),
}

#: What ``--corrected`` and scenarios do instead.
CORRECTED = {
    "lowest-dimension": "it pays for every link; so a ring does not cost the same on every torus",
    "store-and-forward": "head and tail move on their own (cut-through)",
    "free-concurrency": "the same model, where k chunks in flight divide the time by k; choose one with contention",
    "zero-duration": "no time",
    "skipped-node": "children start at once",
    "broadcast-replayed": "it is simulated",
    "injected-size": "sizes in chunks follow the collective",
    "injected-order": "in ascending id (would be off by up to 31 %); in scenarios also `issue_order: hash_set`",
    "own-attributes": "they are read",
    "unsorted-group": "both by the order given",
    "unofficial-backend": "all models have several dimensions",
    "least-chunk": "chunks of the bytes there are",
    "rounded-up": "chunks that sum to the size, not 4 of 349,525 B for 1 MiB in 3 splits",
    "lost-remainder": "all bytes are sent",
    "halving-odd": "all bytes are sent",
    "halving-reduction": "every sum, by its bytes",
    "direct-overlap": "one after the other",
    "direct-window": "for all",
    "tree-end": "it ends when they have it",
    "tree-down": "sums where something is summed",
    "tree-only-reduces": "the usual algorithm of that collective, with a warning",
    "no-memory-bandwidth": "the same",
    "local-delay": "that of the configuration",
    "local-ring": "by dimension where the group fills a grid of them, else the first one listed",
    "local-window": "for all",
    "half-queues": "the same: 2 queues change nothing",
    "whole": "the same (`flat: true`)",
    "ignored-words": "the same",
    "short-list": "the last word serves them",
    "shared-bus": "it is left out: the endpoint delay counts",
    "no-optimization": "as with localBWAware",
}


def warning(quirk: str, detail: str = "") -> str:
    """The line that says that a quirk was met."""
    text = f"quirk {quirk}: {QUIRKS[quirk]}"
    return f"{text} ({detail})" if detail else text


def warn(warnings: list[str], quirk: str, detail: str = "") -> None:
    """Add the line that says that a quirk was met, unless it is there."""
    text = warning(quirk, detail)
    if text not in warnings:
        warnings.append(text)


#: Attributes that only this package writes and reads, and that change a run.
_OWN_ATTRIBUTES = (
    "duration_ps", "slot_kind", "coll_size", "detached", "counter", "count_of", "count_k", "count_from",
    "consumes", "produces",
)  # fmt: skip


def without_own_attributes(trace: ExecutionTrace, warnings: list[str]) -> ExecutionTrace:
    """A trace as ASTRA-sim reads it: without attributes that only this package knows."""
    names = [name for name in _OWN_ATTRIBUTES if trace.has_column(name)]
    if not names:
        return trace
    warn(warnings, "own-attributes", ", ".join(names))
    return trace.with_columns({name: np.full(len(trace), MISSING) for name in names})
