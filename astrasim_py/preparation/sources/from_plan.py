"""Algorithms in MSCCL++ execution plans, whose pipelines have as many iterations as the size of a call asks for."""

from dataclasses import fields

from astrasim_py.core.cache import Memo
from astrasim_py.core.digest import digest
from astrasim_py.core.errors import AlgorithmError, ScenarioError
from astrasim_py.mscclpp.ir import Plan
from astrasim_py.mscclpp.reader import read_plan
from astrasim_py.mscclpp.to_traces import algorithm_of, doubts_of_size, iterations_for
from astrasim_py.mscclpp.verify import verify_plan
from astrasim_py.preparation.sources.source import ScenarioSource
from astrasim_py.preparation.verdicts import enforce, kept_verdict
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.interchange import promised
from astrasim_py.program.selection import AlgorithmCall
from astrasim_py.scenario.algorithm_models import AlgorithmFile
from astrasim_py.verification.verifier import Verdict

_PLANS: Memo[Plan] = Memo(32)
_ALGORITHMS: Memo[Algorithm] = Memo(64)
_VERDICTS: Memo[Verdict] = Memo(32)


class FromPlan(ScenarioSource[AlgorithmFile]):
    """A plan that is read once, and becomes an algorithm for each number of iterations."""

    by_placement: bool = True  # the size of a call says how often pipelines iterate

    @property
    def name(self) -> str:
        return self.spec.file

    def for_call(self, call: AlgorithmCall) -> Algorithm:
        """The algorithm for a call, with its verdict, if it fits the group and the policy lets it pass."""
        run, place, notes = self.run, self.place, self.notes
        for key in ("made_for", "root", "actors", "contract"):
            if getattr(self.spec, key) is not None:
                raise ScenarioError(f"{place}.{key}", "is not for execution plans", "drop it")
        path = run.path(self.spec.file, place)
        plan = run.read_once(_PLANS, [path], ("plan", str(path)), lambda: read_plan(path))
        if plan.ranks != call.ranks:
            problem = f"{path.name} is made for {plan.ranks} ranks, and the group has {call.ranks}"
            raise AlgorithmError(place, problem, "give one made for this group, or choose by when: {ranks: …}")
        iterations = iterations_for(plan, call.size)
        options = ("plan", str(path), call.collective, iterations)
        algorithm = run.read_once(
            _ALGORITHMS, [path], options, lambda: promised(algorithm_of(plan, call.size), call.collective)
        )
        for doubt in doubts_of_size(plan, call.size):
            notes.warn_once(f"{place}: {path.name}: {doubt}")
        if run.spec.verify is False:
            return self.under_protocol(algorithm.with_verdict(None))

        def judged() -> Verdict:
            verdict = verify_plan(plan)
            return Verdict(**{field.name: getattr(verdict, field.name) for field in fields(Verdict)})

        # Plans of other orders can have the same nodes.
        verdict = run.read_once(
            _VERDICTS, [path], ("verdict", str(path)), lambda: kept_verdict(("plan", digest(plan.document)), judged)
        )
        enforce(run.spec, algorithm, verdict, place, notes.warn_once)
        return self.under_protocol(algorithm.with_verdict(verdict.ok))
