"""The operations that executors of MSCCL++ plans know: what they take, and what they do to memory.

``16``, ``8``: bytes of the unit of which a thread handles every N-th: memory, and data in packets. Port channels take
requests: one thread asks, and a proxy moves the data later.
"""

from collections.abc import Mapping
from dataclasses import dataclass

from astrasim_py.mscclpp.ir import MEMORY, PORT, SWITCH


@dataclass(frozen=True, slots=True)
class Kind:
    """What an operation takes and does.

    `sources`, `targets`: kinds of its references: ``L`` on the rank, ``R`` on others, ``S`` on a group; the last one
    may come any number of times. `channels`: channel types that it may name. `unit`: bytes, 0 of those that move none.
    `reads_packets`, `writes_packets`: which of its sources and targets in scratch are packets.
    """

    sources: str = ""
    targets: str = ""
    channels: tuple[str, ...] = ()
    unit: int = 0
    reads_packets: str = ""  # "all", "rest" (all but the first)
    writes_packets: str = ""  # "all", "rest"
    reduces: bool = False
    pairs: bool = False  # the k-th target is a copy of the k-th source


#: Operations by name.
KINDS: Mapping[str, Kind] = {
    "nop": Kind(),
    "barrier": Kind(),
    "signal": Kind(channels=(MEMORY, PORT)),
    "wait": Kind(channels=(MEMORY, PORT)),
    "rlxsignal": Kind(channels=(MEMORY, PORT)),
    "rlxwait": Kind(channels=(MEMORY, PORT)),
    "flush": Kind(channels=(PORT,)),
    "sem_acquire": Kind(),
    "sem_release": Kind(),
    "copy": Kind("L", "L", unit=16, pairs=True),
    "put": Kind("L", "R", (MEMORY, PORT), unit=16, pairs=True),
    "pws": Kind("L", "R", (PORT,), unit=16, pairs=True),
    "pwsf": Kind("L", "R", (PORT,), unit=16, pairs=True),
    "get": Kind("R", "L", (MEMORY,), unit=16, pairs=True),
    "re": Kind("L", "L", unit=16, reduces=True),
    "res": Kind("L", "LR", (MEMORY,), unit=16, reduces=True),
    "rre": Kind("LR", "L", (MEMORY,), unit=16, reduces=True),
    "rres": Kind("LR", "LR", (MEMORY,), unit=16, reduces=True),
    "ppkt": Kind("L", "R", (MEMORY, PORT), unit=8, writes_packets="all", pairs=True),
    "rppkt": Kind("L", "R", (MEMORY, PORT), unit=8, reads_packets="all", writes_packets="all"),
    "cpkt": Kind("L", "L", unit=8, writes_packets="all", pairs=True),
    "upkt": Kind("L", "L", unit=8, reads_packets="all", pairs=True),
    "repkt": Kind("L", "L", unit=8, reads_packets="rest", reduces=True),
    "respkt": Kind("L", "LR", (MEMORY,), unit=8, reads_packets="rest", writes_packets="rest", reduces=True),
    "recpkt": Kind("L", "LL", unit=8, reads_packets="rest", writes_packets="rest", reduces=True),
    "recspkt": Kind("L", "LLR", (MEMORY,), unit=8, reads_packets="rest", writes_packets="rest", reduces=True),
    "glres": Kind("S", "S", (SWITCH,), unit=16, reduces=True),
    "gstore": Kind("L", "S", (SWITCH,), unit=16),
    "gstorepkt": Kind("L", "S", (SWITCH,), unit=8, reads_packets="all", writes_packets="all"),
    "pipeline": Kind(),
}
#: Operations that only order others.
SYNCHRONIZING = frozenset(name for name, kind in KINDS.items() if not kind.unit and name != "pipeline")
SEMAPHORES = frozenset({"sem_acquire", "sem_release"})
