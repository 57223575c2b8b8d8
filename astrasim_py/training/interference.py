"""What overlap of gradients and weights with computation costs a rank, beside the links that they share."""

from collections.abc import Iterable, Mapping

from astrasim_py.core.units import PS_PER_S
from astrasim_py.training.closed_form import spent_by_pass, terms
from astrasim_py.training.lanes import Unit
from astrasim_py.training.prices import Prices
from astrasim_py.training.schedules import BACKWARD, FORWARD, SPLIT_BACKWARD
from astrasim_py.training.strategy import Layout
from astrasim_py.training.terms import KINDS, Exchange


class Interference:
    """Picoseconds by `Constants.interference`, as in the closed form: a part of the shorter of communication and the
    computation beside it.
    """

    def __init__(self, layout: Layout[int], prices: Prices) -> None:
        priced, constants = terms(layout, prices), prices.constants
        spent = {kind: spent_by_pass(getattr(priced, kind), priced, constants) for kind in KINDS}
        self.part, self.mtp = float(constants.interference), "moe" if layout.model.experts else "dense"
        self.once, self.each = (bool(hidden) for hidden in priced.hidden)
        last = "weights" if layout.schedule in SPLIT_BACKWARD else "backward"  # gradients leave beside it
        #: Seconds of passes, and of communication beside them, by kind of layer.
        self.passes = {kind: (float(of.forward.seconds), float(of.backward.seconds)) for kind, of in spent.items()}
        self.leaving = {kind: float(getattr(of, last).seconds) for kind, of in spent.items()}

        def seconds(exchanges: Mapping[str, Exchange]) -> dict[str, tuple[float, float]]:
            return {
                kind: (float(of.gather.seconds(constants.nic)), float(of.reduce.seconds(constants.nic)))
                for kind, of in exchanges.items()
            }

        self.sent_once, self.sent_each = seconds(priced.gradients.once), seconds(priced.gradients.each)

    def _kind(self, unit: Unit) -> str:
        return self.mtp if unit.kind == "mtp" else unit.kind

    def layer_ps(self, unit: Unit, step: int) -> int:
        """Of a pass through a layer with every microbatch."""
        if not self.each or step not in (FORWARD, BACKWARD):
            return 0
        kind = self._kind(unit)
        gather, reduction = self.sent_each[kind]
        sent = gather if step == FORWARD else gather + reduction
        return round(self.part * min(sent, self.passes[kind][step]) * PS_PER_S)

    def iteration_ps(self, units: Iterable[Unit]) -> int:
        """Of the layers of a pipeline rank once an iteration."""
        if not self.once:
            return 0
        kinds = [self._kind(unit) for unit in units]
        gathers, reductions = (sum(self.sent_once[kind][way] for kind in kinds) for way in (0, 1))
        forward, leaving = sum(self.passes[kind][0] for kind in kinds), sum(self.leaving[kind] for kind in kinds)
        return round(self.part * (min(gathers, forward) + min(reductions, leaving)) * PS_PER_S)
