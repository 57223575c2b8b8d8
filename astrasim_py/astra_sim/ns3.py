"""What ASTRA-sim's ns-3 binary is given and its analytical ones are not: it is explained, and not run."""

import json
import os
import re
from collections.abc import Sequence
from contextlib import suppress

from astrasim_py.core.errors import ScenarioError, UsageError

#: Flag of the ns-3 binary alone.
LOGICAL = "--logical-topology-configuration"
#: Lines of ns-3's configuration: a word in capitals, and its value.
_LINE = re.compile(r"([A-Z][A-Z0-9]*_[A-Z0-9_]+)[ \t]+\S")
_MOST = 2**16
_NOT_RUN = "ns-3 is not run here, ASTRA-sim's analytical backends are"


def _yaml(dims: Sequence[int]) -> str:
    """A network YAML of some dimensions, in one line."""
    columns = {"topology": "Ring", "bandwidth": "50.0", "latency": "500.0"}
    listed = {key: ", ".join([word] * len(dims)) for key, word in columns.items()}
    counts = ", ".join(map(str, dims))
    return (
        f"topology: [ {listed['topology']} ], npus_count: [ {counts} ], "
        f"bandwidth: [ {listed['bandwidth']} ], latency: [ {listed['latency']} ]"
    )


def refuse_ns3(path: str | os.PathLike) -> None:
    """Raise ScenarioError: a network configuration is that of ns-3."""
    with suppress(OSError, ValueError), open(path, encoding="utf-8") as file:
        lines = file.read(_MOST).splitlines() if os.path.isfile(path) else []
        words = [(number, match[1]) for number, line in enumerate(lines, 1) if (match := _LINE.match(line))]
        if len(words) > 1:
            number, word = next((pair for pair in words if pair[1] == "TOPOLOGY_FILE"), words[0])
            problem = f"{word}: this is a configuration of the ns-3 backend (packets, queues, congestion control)"
            remedy = (
                f"{_NOT_RUN}: write a network YAML, {_yaml([8])}, or the links of TOPOLOGY_FILE as the edge list of a "
                "scenario"
            )
            raise ScenarioError(f"{os.fspath(path)}:{number}", problem, remedy)


def refuse_logical(path: str) -> None:
    """Raise UsageError: a logical topology is of ns-3."""
    dims = [8]
    with suppress(OSError, ValueError, TypeError), open(path, encoding="utf-8") as file:
        dims = [int(size) for size in json.loads(file.read(_MOST)).get("logical-dims", ())][:8] or dims
    problem = (
        "is of the ns-3 binary: the dimensions of collectives, beside a physical network of packets in "
        "--network-configuration"
    )
    remedy = f"{_NOT_RUN}: drop it, and write both as one network YAML, {_yaml(dims)}"
    raise UsageError(LOGICAL, problem, remedy)
