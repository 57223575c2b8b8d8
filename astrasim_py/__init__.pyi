"""Where each public name stands; type checkers and editors read it, and ``__init__.py`` when a name is first used."""

from astrasim_py.api import build_topology as build_topology
from astrasim_py.api import prepare as prepare
from astrasim_py.api import run as run
from astrasim_py.api import simulate as simulate
from astrasim_py.api import write_algorithm as write_algorithm
from astrasim_py.builders.compose import compose as compose
from astrasim_py.builders.dsl import algorithm as algorithm
from astrasim_py.builders.registry import build_algorithm as build_algorithm
from astrasim_py.builders.split import split as split
from astrasim_py.chakra.read_workload import read_workload as read_workload
from astrasim_py.chakra.workload import Workload as Workload
from astrasim_py.collectives.contract import Contract as Contract
from astrasim_py.collectives.contract import read_contract as read_contract
from astrasim_py.core.errors import AstraError as AstraError
from astrasim_py.core.records import Records as Records
from astrasim_py.inspection.compare import compare as compare
from astrasim_py.inspection.look import explain as explain
from astrasim_py.inspection.look import plot as plot
from astrasim_py.inspection.look import view as view
from astrasim_py.msccl.to_traces import read_algorithm as read_algorithm
from astrasim_py.preparation.from_python import collective as collective
from astrasim_py.preparation.from_python import problem as problem
from astrasim_py.program.algorithm import Algorithm as Algorithm
from astrasim_py.pytorch.convert import convert_pytorch as convert_pytorch
from astrasim_py.scenario.expand import expand as expand
from astrasim_py.scenario.load import load_scenario as load_scenario
from astrasim_py.system.problem import Problem as Problem
from astrasim_py.topology.model import Topology as Topology
from astrasim_py.topology.node_link import from_networkx as from_networkx
from astrasim_py.verification.verifier import verify as verify
from astrasim_py.workload import workload as workload

__version__: str
