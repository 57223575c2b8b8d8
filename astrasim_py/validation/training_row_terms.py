"""What the closed form says of one published run, beside its measurement."""

from collections.abc import Sequence
from dataclasses import asdict, dataclass, replace

from astrasim_py.core.errors import UsageError
from astrasim_py.core.fields import did_you_mean
from astrasim_py.training.closed_form import spent_by_pass, step, terms
from astrasim_py.training.prices import Prices
from astrasim_py.validation.training_classes import measured_mfu, nodes_of
from astrasim_py.validation.training_rows import TrainingRow


@dataclass(frozen=True, kw_only=True)
class LayerTerms:
    """A pass through a layer in seconds: computation of the GPU, its exposed communication, launches of the host,
    software latencies of tensor parallel collectives beside them, and what the pass takes: the longer of both sums.
    """

    layer: str
    step: str
    computation_s: float
    communication_s: float
    host_s: float
    latency_s: float
    takes_s: float


@dataclass(frozen=True, kw_only=True)
class RowTerms:
    """One row: its step as measured and predicted, in seconds, its class, the parts of the step, and of its layers."""

    id: str
    source: str
    place: str
    software: str
    state: str | None
    nodes: int
    measured_mfu: float | None
    measured_s: float
    step_s: float
    rel_error: float
    layout: dict[str, int | str]
    constants: dict[str, float | bool]
    parts_s: dict[str, float]
    layers: tuple[LayerTerms, ...]


def row_terms(rows: Sequence[TrainingRow], name: str) -> RowTerms:
    """The terms of a row by its id. Raises UsageError: there is none, or it cannot be predicted."""
    row = next((row for row in rows if row.id == name), None)
    if row is None:
        raise UsageError("--why", f'no row has the id "{name}"', did_you_mean(name, [row.id for row in rows]))
    if row.problem or row.layout is None or row.system is None:
        raise UsageError("--why", f"{row.place}: {name} is not predicted: {row.problem}", "name another row")
    layout, constants = row.layout, row.constants
    prices = Prices(row.system, layout.dtype, layout.attention, replace(constants, gemm=1.0))
    priced = terms(layout, prices)
    step_time = step(priced, constants)
    seconds = float(step_time.seconds)
    layers = []
    for kind in ("dense", "moe"):
        passes = getattr(priced, kind)
        for way, spent in zip(("forward", "backward"), spent_by_pass(passes, priced, constants)[:2], strict=False):
            pass_terms = getattr(passes, way)
            communication = float(spent.tp + spent.cp + spent.ep)
            if not spent.seconds:
                continue
            layers.append(
                LayerTerms(
                    layer=kind,
                    step=way,
                    computation_s=float(spent.busy),
                    communication_s=communication,
                    host_s=float(constants.host * pass_terms.host),
                    latency_s=float(pass_terms.launched),
                    takes_s=float(spent.seconds),
                )
            )
    keys = ("seq", "gbs", "mbs", "microbatches", "tp", "pp", "cp", "vp", "ep", "dp", "zero", "schedule", "dtype")
    return RowTerms(
        id=row.id,
        source=row.source,
        place=row.place,
        software=row.software,
        state=row.system.state.name if row.system.state else None,
        nodes=nodes_of(row),
        measured_mfu=measured_mfu(row),
        measured_s=row.measured,
        step_s=seconds,
        rel_error=seconds / row.measured - 1,
        layout={key: getattr(layout, key) for key in keys},
        constants=asdict(constants),
        parts_s={key: float(value) for key, value in asdict(step_time).items()},
        layers=tuple(layers),
    )


def row_text(found: RowTerms) -> str:
    """The terms as text."""
    from astrasim_py.core.units import format_time, number_of
    from astrasim_py.report.tables import text_table
    from astrasim_py.report.training import PARTS

    def time(value: float) -> str:
        return format_time(round(value * 10**12))

    layout = "  ".join(f"{key} {value}" for key, value in found.layout.items())
    parts = [
        (PARTS.get(name, name), time(value), f"{100 * value / found.step_s:.1f} %")
        for name, value in found.parts_s.items()
        if value
    ]
    parts += [("predicted", time(found.step_s), "100 %")]
    parts += [("measured", time(found.measured_s), f"{100 * found.measured_s / found.step_s:.1f} %")]
    layers = [
        (one.layer, one.step, *map(time, (one.computation_s, one.communication_s)))
        + tuple(map(time, (one.host_s, one.latency_s, one.takes_s)))
        for one in found.layers
    ]
    mfu = "" if found.measured_mfu is None else f", measured MFU {100 * found.measured_mfu:.1f} %"
    used = ", ".join(f"{key} {value:g}" for key, value in found.constants.items() if not isinstance(value, bool))
    return "\n".join(
        (
            f"{found.place}: {found.id} of {found.source}: {layout}",
            f"{number_of(found.nodes, 'node')}{mfu}, software {found.software}, state {found.state}: "
            f"{100 * found.rel_error:+.1f} %",
            "",
            text_table(("part of a step", "time", "share"), parts, (False, True, True)),
            "",
            text_table(
                ("layer", "pass", "GPU", "communication", "host", "software latency", "takes"),
                layers,
                (False, False, *(True,) * 5),
            ),
            "",
            f"a pass takes the longer of GPU + communication and host + latency; constants: {used}",
        )
    )
