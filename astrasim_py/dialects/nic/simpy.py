"""NICs: what a message costs the ranks that send and receive it (LogGP's o and g)."""

from collections.abc import Callable

from astrasim_py.engine.simpy.network import At, Network
from astrasim_py.engine.simpy.npu import Npu
from astrasim_py.engine.simpy.simulation import Simulation, following
from astrasim_py.system.machine_models import NicModel
from astrasim_py.system.plan import Plan


class Nic:
    """The NIC of one rank; times in ps.

    `free`: when it can spend the overhead of another message. `sends`, `takes`: earliest times at which the next
    message leaves, or is delivered.
    """

    def __init__(self, model: NicModel) -> None:
        self.overhead, self.gap = model.overhead, model.gap
        self.free = self.sends = self.takes = 0

    def handle(self, now: int) -> int:
        """Spend the overhead of a message; returns when that is over."""
        self.free = max(self.free, now) + self.overhead
        return self.free

    def send(self, now: int) -> int:
        """A message is posted; returns when it enters the network."""
        enters = max(self.handle(now), self.sends)
        self.sends = enters + self.gap
        return enters

    def take(self, now: int) -> int:
        """A message arrives; returns when it is delivered."""
        start = max(now, self.takes)
        self.takes = start + self.gap
        return start


class NoNic(Nic):
    """The NIC of a switch: no overhead, no gap."""

    def __init__(self, model: NicModel) -> None:
        super().__init__(model)
        self.overhead = self.gap = 0


class NicNetwork(Network):
    """A network model with NICs at sender and receiver."""

    def send(self, message):
        self.later(message, self.simulation.nics[message.src].send(self.env.now), super().send)

    def hand_over(self, message):
        self.later(message, self.simulation.nics[message.dst].take(self.env.now), super().hand_over)

    def later(self, message, time: int, then: Callable) -> None:
        """Do something with a message at a time, in the order of issue."""
        if time > self.env.now:
            self.after(message, time - self.env.now).callbacks.append(lambda _: then(message))
        else:
            then(message)


class NicNpu(Npu):
    """An NPU that spends the overhead of a message before its receive is done."""

    def take(self, then):
        done, now = self.simulation.nics[self.vertex].handle(self.env.now), self.env.now
        if done > now:
            At(self.env, done - now, self.simulation.number()).callbacks.append(lambda _: then())
        else:
            then()

    def arrived(self, receive):
        self.match(receive)
        message = receive.value
        self.take(lambda: receive.graph.complete(receive.node, message.graph.row + message.node))


class NicSimulation(Simulation):
    """A run with NICs; `nics`: by NPU, or switch."""

    def __init__(self, plan: Plan, level: str) -> None:
        model = plan.problem.nic
        assert model is not None
        kinds = [Nic if rank < plan.npu_ranks else NoNic for rank in range(plan.ranks)]
        self.nics = {vertex: kind(model) for vertex, kind in zip(plan.npu_of, kinds, strict=True)}
        super().__init__(plan, level)

    def network_model(self):
        return following(NicNetwork, super().network_model())

    def npu_rules(self):
        return [NicNpu, *super().npu_rules()]
