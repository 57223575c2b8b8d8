"""What nodes of an algorithm from an MSCCL++ execution plan stand for, as column `plan_role` numbers it."""

from enum import IntEnum


class PlanRole(IntEnum):
    """Role of a node; messages between memory channels of blocks have the thread block that stores as `channel`.

    LOCAL: work of a block on its own rank. MEETING: threads of a block, or blocks of a rank, wait for each other.
    SIGNAL: both ends of a message of 0 bytes. WAIT: for signals. PUT: stores of a block, and their arrival. REQUEST: a
    block asks the proxy to send. PROXY: it takes the request up. PORT: the message that it sends. LOAD: a request of 0
    bytes for cells of another rank. ANSWER: these cells. PACKETS: words with flags, and their arrival. MULTIMEM:
    messages from and to a switch.
    """

    LOCAL = 1
    MEETING = 2
    SIGNAL = 3
    WAIT = 4
    PUT = 5
    REQUEST = 6
    PROXY = 7
    PORT = 8
    LOAD = 9
    ANSWER = 10
    PACKETS = 11
    MULTIMEM = 12
