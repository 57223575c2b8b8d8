"""Topologies in GraphML, as networkx, Gephi, yEd and the Topology Zoo write it; see `node_link` for what counts.

Attributes are the ``data`` of nodes and edges under the ``attr.name`` of their key, with defaults of keys. Ids of yEd
and others, ``n0``, ``n1``, …, are names: their nodes need ``kind``.
"""

from typing import Any, NoReturn
from xml.parsers import expat

from astrasim_py.core.errors import TopologyError
from astrasim_py.topology.edge_list import END_COLUMNS, NO_DEFAULTS
from astrasim_py.topology.link_defaults import LinkDefaults
from astrasim_py.topology.model import Topology
from astrasim_py.topology.node_link import GraphEdge, GraphNode, LinkGraph

#: Deepest nesting of elements, and most characters of a value.
_DEPTH, _MOST = 64, 4096


def read_graphml(text: str, file: str = "", defaults: LinkDefaults = NO_DEFAULTS) -> Topology:
    """Read GraphML. Raises TopologyError: with ``file:line``: not XML, a DOCTYPE, nested graphs, or a wrong link."""
    reader = _Reader(file)
    try:
        reader.parser.Parse(text.encode(), True)
    except expat.ExpatError as error:
        problem = f"not XML: {expat.errors.messages[error.code]}"
        raise TopologyError(f"{file}:{error.lineno}", problem, "write it again with its producer") from None
    return reader.graph().topology(defaults)


class _Reader:
    def __init__(self, file: str) -> None:
        self.file = file
        self.nodes: list[GraphNode] = []
        self.edges: list[GraphEdge] = []
        self.of_graph: dict[str, Any] = {}
        #: Key id → what it is for, its name; and its default.
        self.keys: dict[str, tuple[str, str]] = {}
        self.defaults: dict[str, str] = {}
        self.directed = False
        self.graphs = 0
        self.path: list[str] = []
        self.data: dict[str, Any] | None = None  # of the element that is open
        self.key = ""  # of the <key> or <data> that is open
        self.text: list[str] = []
        self.parser = expat.ParserCreate(namespace_separator=" ")
        self.parser.buffer_text = True
        self.parser.StartElementHandler = self._start
        self.parser.EndElementHandler = self._end
        self.parser.CharacterDataHandler = self._characters
        self.parser.StartDoctypeDeclHandler = lambda *_: self._refuse("a DOCTYPE", "delete it")

    @property
    def place(self) -> str:
        return f"{self.file}:{self.parser.CurrentLineNumber}"

    def _refuse(self, problem: str, remedy: str) -> NoReturn:
        raise TopologyError(self.place, problem, remedy)

    def _start(self, name: str, attributes: dict[str, str]) -> None:
        tag = name.rpartition(" ")[2]
        if not self.path and tag != "graphml":
            self._refuse(f"<{tag[:40]}> is not <graphml>", "write GraphML, e.g. with networkx.write_graphml")
        self.path.append(tag)
        if len(self.path) > _DEPTH:
            self._refuse("nested too deeply", "write nodes and edges of one graph")
        if tag == "graph":
            self.graphs += 1
            if self.graphs > 1:
                self._refuse("a second graph", "write one graph without nested ones")
            self.directed = attributes.get("edgedefault") == "directed"
            self.data = self.of_graph
        elif tag == "key":
            self.key = attributes.get("id", "")
            self.keys[self.key] = attributes.get("for", "all"), attributes.get("attr.name", self.key)
        elif tag == "node":
            self.data = {}
            self.nodes.append(GraphNode(self._needed(attributes, "id"), self.data, self.place))
        elif tag == "edge":
            self.data = {"src": self._needed(attributes, "source"), "dst": self._needed(attributes, "target")}
            directed = {"true": True, "false": False}.get(attributes.get("directed", ""), self.directed)
            self.edges.append(GraphEdge(self.data, self.place, directed))
        elif tag in ("hyperedge", "port"):
            self._refuse(f"<{tag}> is no link", "write edges between two nodes")
        elif tag == "data":
            self.key = self._needed(attributes, "key")
        self.text = []

    def _needed(self, attributes: dict[str, str], name: str) -> str:
        value = attributes.get(name)
        if value is None:
            self._refuse(f"<{self.path[-1]}> has no {name}", f'write {name}="…"')
        return value

    def _characters(self, text: str) -> None:
        if self.path and self.path[-1] in ("data", "default") and len(self.text) < _MOST:
            self.text.append(text[:_MOST])

    def _end(self, name: str) -> None:
        tag = self.path.pop()
        text = "".join(self.text).strip()
        if tag == "data" and self.data is not None and self.path and self.path[-1] in ("graph", "node", "edge"):
            attribute = self.keys.get(self.key, ("all", self.key))[1]
            if attribute not in END_COLUMNS:
                self.data[attribute] = text
        elif tag == "default" and self.path and self.path[-1] == "key":
            self.defaults[self.key] = text
        elif tag in ("node", "edge"):
            self.data = self.of_graph
        self.text = []

    def graph(self) -> LinkGraph:
        """What was read, with the defaults of keys. Raises TopologyError: there is no graph."""
        if not self.graphs:
            raise TopologyError(self.file, "there is no <graph>", "write GraphML, e.g. with networkx.write_graphml")
        for key, text in self.defaults.items():
            of, name = self.keys[key]
            if of in ("node", "all"):
                self.nodes = [node._replace(attributes={name: text, **node.attributes}) for node in self.nodes]
            if of in ("edge", "all"):
                self.edges = [edge._replace(cells={name: text, **edge.cells}) for edge in self.edges]
        return LinkGraph(self.file, self.nodes, self.edges, self.of_graph.get("npus"))
