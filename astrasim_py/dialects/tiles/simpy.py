"""Gates of a rank that uses collectives in tiles: nodes that wait for a part of a collective, and steps of a
collective that wait for a part of their data.
"""

from itertools import groupby

from astrasim_py.engine.simpy.npu import Graph, Npu
from astrasim_py.engine.simpy.simulation import Simulation
from astrasim_py.system.programs import BEGINS, ENDS, TileGates


class Gates:
    """The gates of one rank. `left`: triggers that each waits for."""

    def __init__(self, npu, gates: TileGates) -> None:
        self.npu, self.left = npu, gates.count.tolist()
        self.targets = list(zip(gates.collective.tolist(), gates.node.tolist(), strict=True))
        #: By node of the workload and what ends or begins: gates.
        self.on = {
            key: [gate for *_, gate in group]
            for key, group in groupby(gates.triggers.tolist(), lambda row: (*row[:2],))
        }
        self.held: dict[int, list[int]] = {}
        for gate, (collective, _) in enumerate(self.targets):
            self.held.setdefault(collective, []).append(gate)
        #: Graphs of calls that have begun, by the node of the workload; and back.
        self.graphs: dict[int, Graph] = {}
        self.collective: dict[int, int] = {}

    def begin(self, graph, index: int, node: int) -> list[int]:
        """A call begins for a node of the workload: closed gates hold nodes. Returns the roots that are not held."""
        self.graphs[node], self.collective[index] = graph, node
        for gate in self.held.get(node, ()):
            if self.left[gate] > 0:
                graph.need[self.targets[gate][1]] += 1
        return [root for root in graph.program.roots if not graph.need[root]]

    def begun(self, graph, row: int) -> None:
        """The roots of a call are released by the node of the workload in `row`."""
        self.open((self.collective[graph.index], BEGINS), row)

    def ended(self, graph, node: int) -> None:
        """A node is done, of the workload or of a call."""
        key = (node, ENDS) if graph.index < 0 else (self.collective.get(graph.index, -1), node)
        self.open(key, graph.row + node)

    def open(self, key: tuple[int, int], row: int) -> None:
        """Something has happened that gates wait for; those that wait for nothing else release their nodes."""
        for gate in self.on.get(key, ()):
            self.left[gate] -= 1
            if self.left[gate] == 0:
                collective, node = self.targets[gate]
                graph = self.npu.graphs[-1] if collective < 0 else self.graphs.get(collective)
                if graph is not None:
                    graph.less_need([node], row)


class TiledNpu(Npu):
    """An NPU that may use collectives in tiles; `gates`: of its rank, None if it does not."""

    def __init__(self, simulation, rank: int) -> None:
        super().__init__(simulation, rank)
        gates = simulation.plan.tiles.get(rank)
        self.gates = None if gates is None else Gates(self, gates)

    def begin(self, graph, parent, row):
        if self.gates is None:
            super().begin(graph, parent, row)
        else:
            graph.release(self.gates.begin(graph, graph.index, parent - self.graphs[-1].row), row)
            self.gates.begun(graph, parent)


class TiledGraph(Graph):
    """A graph with nodes that may open gates."""

    def less_need_of_children(self, node):
        super().less_need_of_children(node)
        if self.npu.gates is not None:
            self.npu.gates.ended(self, node)


class TiledSimulation(Simulation):
    """A run in which ranks use collectives in tiles."""

    def npu_rules(self):
        return [TiledNpu, *super().npu_rules()]

    def graph_rules(self, program, index):
        return [TiledGraph, *super().graph_rules(program, index)]
