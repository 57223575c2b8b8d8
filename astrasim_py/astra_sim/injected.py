"""Injected algorithms: the files of a collective, and ASTRA-sim's reading of them."""

from collections.abc import MutableMapping

from astrasim_py.astra_sim.input_set import Inputs, read_set
from astrasim_py.astra_sim.quirks import warn, without_own_attributes
from astrasim_py.chakra.schema import MISSING, NodeType
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.interchange import algorithm_from_traces
from astrasim_py.program.traces import Traces
from astrasim_py.system.durations import node_place
from astrasim_py.system.problem import CollectiveRequest
from astrasim_py.verification.verifier import verify


class Injected:
    """The algorithms that a system configuration injects: for single nodes, else for a collective.

    `corrected`: files and peers by the order of the group, sizes in chunks following the collective.
    """

    def __init__(
        self, inputs: Inputs, *, corrected: bool, warnings: list[str], cache: MutableMapping | None = None
    ) -> None:
        self.inputs, self.corrected, self.warnings = inputs, corrected, warnings
        self.cache = {} if cache is None else cache

    def algorithm(self, call: CollectiveRequest) -> Algorithm | None:
        """The algorithm injected for a call; None where nothing is.

        Raises TraceError: a damaged file. Raises AlgorithmError: ASTRA-sim would abort on it or wait for ever.
        """
        name = self.inputs.per_node.get(call.node, self.inputs.system.injected(call.type))
        if name is None:
            return None
        prefix = str(self.inputs.folder / name)
        ordered = sorted(call.members)
        position = tuple(range(len(ordered)))
        if list(call.members) != ordered and not self.corrected:
            position = tuple(ordered.index(rank) for rank in call.members)
            warn(self.warnings, "unsorted-group", f"group {call.group}")
        key = ("algorithm", prefix, call.type, position, self.corrected)
        if key not in self.cache:
            self.cache[key] = self._read(prefix, call.type, position)
        algorithm = self.cache[key]
        if not self.corrected:
            warn(self.warnings, "injected-size", prefix)
        elif not algorithm.scales:
            text = f"{prefix}: its sizes are in bytes and stay as written (in a scenario, made_for rescales them)"
            if text not in self.warnings:
                self.warnings.append(text)
        return algorithm

    def _read(self, prefix: str, collective: str, position: tuple[int, ...]) -> Algorithm:
        traces = read_set(prefix, len(position), f"the group that calls {collective}", self.cache)
        if self.corrected:
            return self._verified(algorithm_from_traces(traces, collective, source=prefix))
        traces = tuple(without_own_attributes(trace, self.warnings) for trace in traces)
        for rank, trace in enumerate(traces):
            size, sends = trace.column("comm_size"), trace.type == NodeType.COMM_SEND
            message = sends | (trace.type == NodeType.COMM_RECV)
            for rows, problem in (
                (~message & (trace.type != NodeType.COMP), "is not SEND, RECV or COMP and never ends"),
                (message & (size == MISSING), "lacks comm_size: ASTRA-sim throws on sizes in chunks"),
                (sends & (size <= 0), "sends no bytes: ASTRA-sim aborts on empty messages"),
            ):
                if rows.any():
                    place = node_place(trace, int(rows.argmax()), f"rank {rank}")
                    raise AlgorithmError(place, problem, "use --corrected, or write other files")
        return Algorithm(
            name=prefix.rsplit("/", 1)[-1],
            collective=collective,
            ranks=len(traces),
            traces=Traces.of((traces[p] for p in position), searched=True),
            source=prefix,
        )

    def _verified(self, algorithm: Algorithm) -> Algorithm:
        """The algorithm with its verdict; one that is wrong is no algorithm for its collective."""
        if not algorithm.has_cells:
            return algorithm
        verdict = verify(algorithm)
        if verdict.ok is False:
            remedy = f"see: python -m astrasim_py verify {algorithm.source}"
            raise AlgorithmError(algorithm.source, f"is no {algorithm.collective}: {verdict.problem}", remedy)
        self.warnings += [f"{algorithm.source}: {text}" for text in verdict.warnings]
        return algorithm.with_verdict(verdict.ok)
