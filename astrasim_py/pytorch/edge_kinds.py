"""Why nodes of a recording wait for each other."""

from enum import IntEnum


class EdgeKind(IntEnum):
    """Why one node waits for another."""

    CPU = 0  # the thread's piece before
    LAUNCH = 1  # the call that launched it
    STREAM = 2  # the operation before on its stream
    WAIT = 3  # an operation of another stream: an event
    SYNC = 4  # a CPU piece waits for the device
    HANDOVER = 5  # a CPU piece waits for another thread
    GAP = 6  # unexplained time before a node
    CALL = 7  # communication


#: Kinds of edges that may be left out.
KINDS = tuple(kind.name.lower() for kind in EdgeKind if kind not in (EdgeKind.GAP, EdgeKind.CALL))
