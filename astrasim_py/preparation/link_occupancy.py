"""When a schedule holds which link, as CSV: for people, and for another tenant's synthesis."""

import os

import numpy as np

from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.files import read_regular, write_file
from astrasim_py.results.csv_io import csv_chunks, read_csv
from astrasim_py.synthesis.model.network import Occupied
from astrasim_py.synthesis.model.schedule import Schedule
from astrasim_py.topology.model import Topology

#: Columns: the link, its ends as vertices of the topology, the hold, and what it is for.
HOLDS = ("link", "src", "dst", "start_ps", "end_ps", "sender", "receiver", "chunk", "reduces")
#: Largest file that is read, bytes.
MAX_HOLDS = 2**30


def write_occupancy(path: str | os.PathLike, schedule: Schedule) -> None:
    """Write every hold of a link, by its start. Raises OutputError."""
    topology, npus = schedule.network.topology, np.array(schedule.network.npus, dtype=np.int64)
    transfer, resource, start, end = schedule.holds()
    order = np.lexsort((resource, start))
    transfer, link = transfer[order], schedule.network.links[resource[order]].astype(np.int64)
    columns = (
        link, topology.src[link], topology.dst[link], start[order], end[order], npus[schedule.src[transfer]],
        npus[schedule.dst[transfer]], schedule.chunk[transfer], schedule.reduces[transfer],
    )  # fmt: skip
    table = {name: np.asarray(column, dtype=np.int64) for name, column in zip(HOLDS, columns, strict=True)}
    write_file(path, csv_chunks(table), make_folder=True)


def read_occupancy(path: str | os.PathLike, topology: Topology, place: str = "") -> Occupied:
    """Read when another schedule holds links. `topology`: on which that schedule runs. `place`: before the name of the
    file, in errors. Raises ScenarioError: not such a file, or one of another topology.
    """
    file_place = f"{place}: {path}" if place else str(path)
    remedy = "give what synthesize --write-occupied wrote"
    data = read_regular(path, MAX_HOLDS, ScenarioError, what="a .csv of --write-occupied", remedy="occupy less")
    try:
        table = read_csv(data)
        link, src, dst, start, end = (np.asarray(table[name], dtype=np.int64) for name in HOLDS[:5])
    except (KeyError, ValueError, TypeError, OverflowError, StopIteration):
        problem = f"does not have the columns {','.join(HOLDS[:5])} in whole numbers"
        raise ScenarioError(file_place, problem, remedy) from None

    def refuse(wrong: np.ndarray, problem: str, remedy: str) -> None:
        rows = np.flatnonzero(wrong)
        if len(rows):
            # Line 1 has the names.
            raise ScenarioError(f"{file_place}:{int(rows[0]) + 2}", problem, remedy)

    same_topology = "give one of the same topology"
    refuse((link < 0) | (link >= topology.links), f"a link that {topology.name} does not have", same_topology)
    refuse((topology.src[link] != src) | (topology.dst[link] != dst), f"not a link of {topology.name}", same_topology)
    refuse((start < 0) | (end < start) | (end > 2**61), "a hold that ends before it begins, or beyond 2^61 ps", remedy)
    return Occupied(link, start, end)
