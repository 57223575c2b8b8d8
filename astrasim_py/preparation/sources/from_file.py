"""Algorithms in files."""

from dataclasses import replace

from astrasim_py.core.by_need import load
from astrasim_py.core.cache import Memo
from astrasim_py.preparation.sources.source import ScenarioSource
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.scenario.algorithm_models import AlgorithmFile

_ALGORITHMS: Memo[Algorithm] = Memo(32)
#: Readers by the ending of a file's name; of all others, which are prefixes.
_READERS = {".xml": "astrasim_py.msccl.to_traces:read_algorithm"}
_READER = "astrasim_py.program.files:read_algorithm"


class FromFile(ScenarioSource[AlgorithmFile]):
    """An algorithm that is read once, and is the same for all calls."""

    @property
    def name(self) -> str:
        return self.spec.file

    def for_ranks(self, collective: str, ranks: int, root: int) -> Algorithm:
        algorithm = self._read(collective)
        if self.spec.made_for is not None and algorithm.symbolic:
            reason = "its sizes are in chunks and follow every call, so that it changes nothing; drop it"
            self.notes.warn_once(f"{self.place}.made_for: {reason}")
        algorithm = self.checked(algorithm, collective, ranks, root)
        actors = self.spec.actors or {}
        return self.with_switches(algorithm, actors, actors)

    def _read(self, collective: str) -> Algorithm:
        spec, run = self.spec, self.run
        if spec.file in run.given:
            return run.given[spec.file]
        path = run.path(spec.file, self.place)
        files = [path] if path.suffix in (".npz", ".xml") else run.trace_files(path, None, self.place)
        contract = None if spec.contract is None else run.path(spec.contract, self.place)
        files += [contract] if contract else []

        def read() -> Algorithm:
            reader = load(_READERS.get(path.suffix, _READER))
            algorithm: Algorithm = reader(str(path), collective, made_for=spec.made_for, root=spec.root)
            if contract is None:
                return algorithm
            from astrasim_py.collectives.contract import read_contract

            return replace(algorithm, contract=read_contract(contract))

        options = ("algorithm", str(path), str(contract), collective, spec.made_for, spec.root)
        return run.read_once(_ALGORITHMS, files, options, read)
