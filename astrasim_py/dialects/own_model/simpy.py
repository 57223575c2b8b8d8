"""A network model that is not of this package: what it gives and yields is checked, and its faults told as its own."""

from collections.abc import Callable, Generator
from dataclasses import dataclass, replace
from functools import partial
from typing import Any

from simpy import Event

from astrasim_py.core.errors import ScenarioError
from astrasim_py.core.fields import shown
from astrasim_py.core.registry import package_line
from astrasim_py.engine.simpy.simulation import LimitReached, Simulation
from astrasim_py.system.plan import Plan

_PROCESS = "write a generator of SimPy's events: yield self.env.timeout(…)"


@dataclass(frozen=True)
class OwnModel:
    """A factory of network models; `text`: its name, `place`: where the scenario names it."""

    factory: Callable
    text: str
    place: str = "network.model"

    def __call__(self, simulation: Any) -> Any:
        """The model of a run. Raises ScenarioError: it is none."""
        model = self.factory(simulation)
        if not (callable(getattr(model, "carry", None)) and callable(getattr(model, "send", None))):
            problem = f"{self.text} gave a {type(model).__name__}, which is no Network with carry(message)"
            raise ScenarioError(self.place, problem, "give a network model")
        if hasattr(model, "__dict__"):
            model.carry = partial(self._journey, simulation, model.carry)
        return model

    def _journey(self, simulation: Any, carry: Callable, message: Any) -> Generator[Event]:
        events = carry(message)
        if not isinstance(events, Generator):
            problem = f"{self.text}: carry(message) gave a {type(events).__name__}, which is no process"
            raise ScenarioError(self.place, problem, _PROCESS)
        simulation.undelivered += 1
        take: Callable = partial(next, events)
        while True:
            simulation.count_waits()
            try:
                event = take()
            except StopIteration:
                simulation.undelivered -= 1
                return
            if not isinstance(event, Event):
                problem = f"{self.text}: carry(message) yields {shown(event)}, which is no event"
                raise ScenarioError(self.place, problem, _PROCESS)
            try:
                take = partial(events.send, (yield event))
            except Exception as error:  # an event that failed is the model's to handle
                take = partial(events.throw, error)

    def failure(self, error: Exception) -> ScenarioError:
        """What tells of an error of a run under the model that did not arise in a line of its own: the engine called it
        with other arguments than it takes, or met a value that it gave or set.
        """
        text = " ".join(f"{type(error).__name__}: {error}".split())
        return ScenarioError(
            self.place,
            f"{self.text}: a run under it failed: {text} (at {package_line(error)})",
            "check the arguments of its methods, and what it yields and sets (docs/extend.md)",
        )


class OwnModelSimulation(Simulation):
    """A run under such a model. `undelivered`: messages under way; `waited`: how often messages have waited."""

    def __init__(self, plan: Plan, level: str) -> None:
        self.undelivered = self.waited = 0
        super().__init__(plan, level)

    def count_waits(self) -> None:
        """Count that the model goes on, and give up after too many: it may be in a loop."""
        self.waited += 1
        if self.waited > self.max_events:
            raise LimitReached(f"more than {self.max_events} events (--max-events)")

    def waits(self):
        return replace(super().waits(), undelivered=self.undelivered)
