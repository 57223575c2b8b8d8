"""Checked programs in execution order, from which other algorithms are made."""

from dataclasses import replace

import numpy as np

from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.collectives.contract import Contract
from astrasim_py.core.errors import AlgorithmError, TraceError
from astrasim_py.program.algorithm import Algorithm, place_of
from astrasim_py.program.steps import Layout, steps_of
from astrasim_py.program.table import Unusable
from astrasim_py.verification.termination import Flow
from astrasim_py.verification.verifier import verify

_KEPT = (
    "comm_src", "comm_dst", "comm_tag", "msg_chunk_idx", "msg_chunk_cnt", "comp_op", "src_buf", "src_off", "dst_buf",
    "dst_off", "channel", "source_line", "total_chunk_cnt",
)  # fmt: skip


def checked(algorithm: Algorithm, place: str) -> Algorithm:
    """The algorithm with its verdict."""
    verdict = verify(algorithm)
    if verdict.ok is False:
        line = (verdict.counterexample or {}).get("line")
        where = f"{algorithm.source}:{line}" if line else place
        raise AlgorithmError(where, f"{algorithm.name} is no {algorithm.collective}: {verdict.problem}", "")
    return algorithm.with_verdict(verdict.ok)


class OrderedProgram:
    """The program of an algorithm that terminates, in an order in which it can run. It has no thread
    blocks and no fused steps, as these are of the file that the algorithm was read from."""

    def __init__(self, algorithm: Algorithm, doing: str) -> None:
        self.algorithm, place = algorithm, place_of(algorithm)
        if algorithm.actors:
            problem = f"{algorithm.name} is in part run by switches, so it cannot be {doing}"
            raise AlgorithmError(place, problem, "use an algorithm of ranks only")
        if algorithm.collective == "barrier" or not algorithm.has_cells:
            reason = "moves no chunks" if algorithm.collective == "barrier" else "does not state the cells of its steps"
            raise AlgorithmError(place, f"{algorithm.name} {reason}, so it cannot be {doing}", "use another algorithm")
        try:
            self.program = program = algorithm.program.with_columns_only(_KEPT)
            steps = steps_of(algorithm, program)
            flow = Flow(steps)
            self.layout = Layout(steps)
        except (Unusable, TraceError) as error:
            raise AlgorithmError(place, f"{error}, so it cannot be {doing}", "fix it") from None
        if not flow.ends:
            raise AlgorithmError(place, f"{algorithm.name} never ends, so it cannot be {doing}", "fix it")
        self.size, self.rank, self.type, self.payload = len(steps), program.rank, program.type, program.payload
        cells = (np.array(cells_of, dtype=np.int64) for cells_of in (self.layout.reads, self.layout.writes))
        #: First cell of its rank that each node reads and writes, -1 for none.
        self.reads, self.writes = (np.where(c < 0, -1, c - self.rank * self.layout.stride) for c in cells)
        self.count = np.array(steps.count, dtype=np.int64)
        self.sender = np.array(flow.sender, dtype=np.int64)
        self.sequence = flow.sequence
        self.at = np.argsort(flow.sequence)
        self.child, self.parent = program.child, program.parents
        self.columns = {name: program.column(name) for name in _KEPT}
        sends = self.type == NodeType.COMM_SEND
        self.message = sends | (self.type == NodeType.COMM_RECV)
        # A message belongs to a pair of ranks, and has its turn there.
        peer = np.where(sends, self.columns["comm_dst"], self.columns["comm_src"])
        n = algorithm.ranks
        self.pair = np.where(sends, self.rank * n + peer, peer * n + self.rank)
        # Messages of a queue keep their order; others are ordered by their arrival.
        turn = self.at.copy()
        receives = np.flatnonzero(self.sender >= 0)
        turn[self.sender[receives]] = turn[receives]
        if (self.columns["channel"] != MISSING).any():
            order = np.lexsort((turn, self.columns["comm_tag"]))
            turn[order] = np.arange(self.size)
        self.turn = turn

    def origin(self, g: int) -> str:
        """The source line of a node, for messages."""
        line, source = int(self.columns["source_line"][g]), self.algorithm.source
        return f"{source}:{line}" if line > 0 and source else self.program.node(g)


def spread(contract: Contract, k: int) -> Contract:
    """The same contract with every chunk cut into k."""
    if k == 1:
        return contract
    outputs = {
        (r, c * k + j): {(q, i * k + j): times for (q, i), times in terms.items()}
        for (r, c), terms in contract.outputs.items()
        for j in range(k)
    }
    inputs = contract.inputs
    if inputs is not None:
        inputs = frozenset((r, c * k + j) for r, c in inputs for j in range(k))
    return replace(contract, chunks=contract.chunks * k, outputs=outputs, inputs=inputs)
