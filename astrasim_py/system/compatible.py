"""What excludes what: a row for features and the uses that do not have them, with the reason.

A feature is a key of the network or the semantics that differs from its default (``network.msccl``), with a value of
its own where this matters (``network.model: fluid``); another part of a problem (``nic``); or what a plan has
(``tiles``). A use is a feature, too, or a way to know a result: a fold, a formula. docs/compatible.md prints the table.
"""

from collections.abc import Collection, Iterator, Mapping
from typing import NamedTuple

from astrasim_py.core.choices import NETWORK_MODELS
from astrasim_py.core.errors import AstraError, ScenarioError
from astrasim_py.core.strict_model import StrictModel

ANALYTICAL, FLUID, OWN = "network.model: analytical", "network.model: fluid", "network.model: your own"
PROFILE, MSCCL, QPS, SPLIT = "network.profile", "network.msccl", "network.qps", "network.split"
PROTOCOL, SWITCH_REDUCTION = "network.protocol", "network.switch_reduction"
HASH_SET, NIC, NOISE = "semantics.issue_order: hash_set", "nic", "noise"
ECMP, EVENTS = "topology.ecmp", "topology.events"
BY_DIMENSION, COUNTERS = "collectives by dimension", "counters and detached sends"
SWITCHES, THREAD_BLOCKS, TILES = "switches that compute", "thread blocks", "tiles"
SKELETON, NO_ROUTES = "a skeleton", "too many routes for a table"
LOWEST_DIM = "lowest_dim under analytical"
JOBS, DELAYS, LATE, SPEEDS = "several jobs", "start_delay", "start_delay of some ranks", "compute_speed"
FAILED, EMPTY, SHARED_MEMORY = "failed NPUs", "NPUs without ranks", "memory that NPUs share"
USED_MEMORY = "memory that NPUs share, and nodes that use it"
ROOFLINE = "times: roofline of a training"
PLANNER, BACKGROUND = "a planner of your own without `placed`", "background jobs"
#: Uses that are no features of a problem.
FOLD, ROLES, COMPILED, INLINING, SYNTHESIS = "fold", "fold of roles", "the compiled engine", "inlining", "synthesis"
CLOSED_FORM, BOUND, CALL_BOUND = "closed forms", "lower bounds of runs", "lower bounds of collectives"
TRAINING_FORM = "the closed form of trainings"


class Row(NamedTuple):
    """Features that each of some uses excludes; none where they go with everything.

    `problem`, `remedy`: texts of the error, formatted with the parts of the problem, `feature` and its last word `key`,
    its `value` and the `usual` one, and `use`, the last word of the use. `at_feature`: whether the error names the
    place of the feature instead of that of the use.
    """

    features: tuple[str, ...]
    uses: tuple[str, ...]
    problem: str = ""
    remedy: str = "drop one of them"
    at_feature: bool = False


def _rules(keys: str) -> tuple[str, ...]:
    return tuple(f"semantics.{key}" for key in keys.split())


#: Keys of the network and of the semantics without a row of their own, which no formula knows.
_OTHERS = ("network.*", "semantics.*")
# fmt: off
TABLE = (
    Row(("network.send_completes", *_rules("dependencies decimal_bandwidth gamma cpu_slots compute_slots")), ()),
    Row(("network.model",), (PROFILE,), "a profile needs cut_through, not {value}", at_feature=True),
    Row((f"no {FLUID}",), (EVENTS,),
        "{network.model} reserves links for messages as they begin, so no link can fail or change during a run",
        "write model: fluid, or delete the events"),
    Row((ANALYTICAL,), (SPLIT,), "under analytical parts of a message would not share even the link of their sender",
        "write another model, or drop split"),
    Row((OWN,), (FOLD, ROLES), "network model {network.model} has unknown symmetry"),
    Row((FLUID,), (FOLD, ROLES), "network.model fluid shares links by the rates of all messages at once"),
    Row((OWN,), (COMPILED,), "cannot run the network model {network.model}, which is written in Python",
        "write auto or simpy"),
    Row(("network.link_busy",), (PROFILE,), "a profile needs link_busy: bytes", "drop link_busy", at_feature=True),
    Row(("network.link_busy",), (FLUID,), "fluid needs link_busy: bytes", "drop link_busy", at_feature=True),
    Row((f"no {PROFILE}",), (PROTOCOL, SWITCH_REDUCTION), "{use} without a profile", "write profile: NAME, or drop it"),
    Row((PROFILE,), (FOLD,), "under a profile (network.profile) the order of a rank's own messages matters"),
    Row((MSCCL,), (PROFILE,), "a profile has its own connections, not those of msccl", at_feature=True),
    Row((MSCCL,), (SPLIT,), "split and msccl exclude each other: slots of connections hold whole messages"),
    Row((MSCCL,), (FOLD, ROLES), "with slots of connections (network.msccl) the order of ranks matters"),
    Row((MSCCL,), (HASH_SET,), "does not support network.msccl, which cuts nodes into pieces",
        "write issue_order: id, or drop msccl"),
    Row((QPS,), (PROFILE,), "a profile was measured with the queue pairs of its machine", at_feature=True),
    Row((f"no {QPS}",), (SPLIT,), "split without queue pairs", "write e.g. qps: 4, or drop it"),
    Row((f"no {ECMP}",), (QPS,), "queue pairs change nothing: {topology} has one route from an NPU to another",
        "write routing: {{ecmp: true}} for the topology, or drop it"),
    Row((ANALYTICAL, FLUID, OWN, MSCCL, PROFILE, QPS, NIC), (SYNTHESIS,),
        "schedules are planned for links that serve one message at a time, without it"),
    Row(("network.link_busy", MSCCL, PROFILE, PROTOCOL, SWITCH_REDUCTION, QPS, SPLIT, "network.*"), (SWITCHES,),
        "does not support switches that compute, but {algorithm} has switches that take part", "drop it", True),
    Row(("semantics.name",), (PROFILE,), "does not support semantics {value}"),
    Row(_rules("rounding event_order issue_order message_match rendezvous_bytes injected_sizes"), (PROFILE,),
        "does not support {feature}"),
    Row(_rules("rounding event_order"), (FLUID,), "fluid does not support {feature}: {value}",
        "write {key}: {usual}, or another model"),
    Row(_rules("event_order message_match rendezvous_bytes analytical_route"), (QPS,),
        "queue pairs do not support {feature}: {value}", "write {key}: {usual}, or drop one of them"),
    Row(_rules("comm_slots"), (SPLIT,),
        "split does not support semantics.comm_slots: {value}; parts would take slots"),
    Row(_rules("comm_slots"), (INLINING,), "holds a slot until a collective ends, which its nodes cannot say",
        "drop it", at_feature=True),
    Row(_rules("event_order rendezvous_bytes"), (NIC,), "overhead and gap do not support {feature}: {value}",
        "write {key}: {usual}, or drop nic"),
    Row(_rules("message_match"), (FOLD, ROLES),
        "messages that match by bytes (semantics.message_match) match across calls"),
    Row(_rules("event_order"), (FOLD, ROLES), "semantics.event_order: scheduled makes the order of ranks matter"),
    Row(_rules("comm_slots"), (ROLES,), "collectives wait for each other's slots (semantics.comm_slots)"),
    Row(("no semantics.event_order: scheduled",), (HASH_SET,), "hash_set needs event_order: scheduled",
        "write both, or neither"),
    Row(_rules("rendezvous_bytes"), (FOLD,), "with a rendezvous the order of ranks matters"),
    Row((LOWEST_DIM,), (FOLD,), "semantics.analytical_route: lowest_dim depends on pairs of NPUs, not on links"),
    Row(_rules("rounding injected_sizes analytical_route message_match rendezvous_bytes event_order issue_order exposed"
               " name *"), (SWITCHES,),
        "does not support switches that compute, but {algorithm} has switches that take part",
        "write semantics: native", at_feature=True),
    Row((PROFILE,), (NIC,), "a profile has the costs of messages already"),
    Row((OWN,), (NIC,),
        "the network model {network.model} is not of this package and may deliver messages itself",
        "write another model, or drop nic"),
    Row((NIC,), (FOLD, ROLES), "NICs handle messages one after the other (nic), and the order of ranks matters"),
    Row((NOISE,), (FOLD, ROLES), "ranks compute under different noise"),
    Row((NOISE,), (SKELETON,), "is of compute nodes, of which a skeleton has few"),
    Row((BY_DIMENSION,), (PROFILE,), "does not support collectives by dimension"),
    Row((BY_DIMENSION,), (SWITCHES,), "are cut by dimension, and {algorithm} has switches that take part"),
    Row((BY_DIMENSION,), (INLINING,), "runs {value} dimension by dimension, in queues that a trace cannot say",
        "choose one algorithm for all ranks of the collective"),
    Row((COUNTERS,), (INLINING,), "{value} counts completions or has detached sends, which only collectives do",
        "choose another algorithm"),
    Row((COUNTERS,), (SPLIT,), "has counters or detached sends, and messages that network.split splits",
        "leave split out of the network"),
    Row((COUNTERS,), (THREAD_BLOCKS,), "has counters or detached sends beside thread blocks", "leave one of both out"),
    Row((COUNTERS,), (MSCCL,), "has counters or detached sends, and steps of several messages",
        "leave msccl out of the network"),
    Row((SWITCHES,), (INLINING,), "has collectives in which switches take part", "choose algorithms without switches"),
    Row((SWITCHES,), (FOLD, ROLES), "{value} takes part in collectives"),
    Row((TILES,), (FOLD, ROLES), "computations wait for tiles of collectives, which hold other chunks on each rank"),
    Row((TILES,), (HASH_SET,), "does not support computations that use collectives in tiles", "write issue_order: id"),
    Row((NO_ROUTES,), (FLUID,), "fluid needs a table of routes, but there are too many routes among {value} NPUs",
        "write another model, or fewer NPUs"),
    Row((NO_ROUTES,), (COMPILED,), "cannot run the analytical model with so many routes among {value} NPUs",
        "write auto or simpy"),
    Row((JOBS,), (FOLD, ROLES), "there are {value} jobs; only ranks of one job can be symmetric"),
    Row((QPS, SPLIT, *_OTHERS), (FOLD, ROLES), "{feature} may break the symmetry of ranks"),
    Row((ECMP,), (FOLD, ROLES), "routes of {topology} are spread by a hash (ecmp)"),
    Row((FAILED,), (FOLD,), "NPU {value} of {topology} has failed"),
    Row((EMPTY,), (FOLD,), "{value} ranks do not fill the {npus} NPUs of {topology}"),
    Row((LATE,), (FOLD,), "{value} starts later or earlier than rank 0 (start_delay)"),
    Row((DELAYS,), (ROLES,), "ranks start at different times (start_delay)"),
    Row((SPEEDS,), (ROLES,), "ranks compute at different speeds"),
    Row((SHARED_MEMORY,), (ROLES,), "NPUs share memory (memory.kind: {value})"),
    Row((USED_MEMORY,), (FOLD,), "ranks share their memory ({value})"),
    Row((PLANNER,), (ROLES,), "the rules that cut collectives into chunks are known only for all ranks together"),
    Row((OWN, MSCCL, PROFILE, PROTOCOL, SWITCH_REDUCTION, QPS, SPLIT, NIC, *_OTHERS, *_rules(
        "name rounding zero_duration_ps injected_sizes rendezvous_bytes issue_order")), (CLOSED_FORM,),
        "a formula is of whole messages, each of which takes latency + bytes / bandwidth"),
    Row((ANALYTICAL, OWN, BACKGROUND, *_OTHERS, *_rules("name rounding injected_sizes")), (BOUND,),
        "a run may take less"),
    Row((ANALYTICAL, OWN, *_rules("name")), (CALL_BOUND,), "a collective may take less"),
    Row((NOISE, NIC), (TRAINING_FORM,), "is not known to the closed form", "drop it", at_feature=True),
    Row((PROFILE,), (TRAINING_FORM,), "closed forms do not know profiles", "drop it", at_feature=True),
    Row((ROOFLINE,), (TRAINING_FORM,), "the closed form does not know the roofline", "write times: model"),
)
# fmt: on
#: Where an error of a use stands, if not under its name.
_PLACES = {FLUID: "network.model", EVENTS: "network.model", SWITCHES: "collectives"}
#: Keys that have a row; a ``factory`` makes the model your own.
_LISTED = {name.removeprefix("no ").partition(": ")[0] for row in TABLE for name in row.features} | {"network.factory"}


class Exclusion(NamedTuple):
    """A row that applies to a problem: a use, a feature of the problem, and the texts of the error."""

    use: str
    feature: str
    place: str
    problem: str
    remedy: str


def exclusions(parts: Mapping[str, object], uses: Collection[str] | None = None) -> Iterator[Exclusion]:
    """What excludes some uses among the parts of a problem.

    Parameters
    ----------
    parts : mapping
        Parts of a problem: ``network`` and ``semantics`` are models; other features have their value for the texts, or
        None or False where the problem does not have them. Rows on parts that are not given do not apply.
    uses : collection of str or None
        Uses that are asked about; None: the features of the problem.
    """
    features = _features(parts)
    asked = features if uses is None else uses
    for row in TABLE:
        for use in row.uses:
            for name in row.features if use in asked else ():
                needed = name.removeprefix("no ")
                known = needed in parts or needed.partition(".")[0] in parts
                if name in features or (needed != name and known and needed not in features):
                    yield _exclusion(row, use, name, parts, features)


def refuse(
    use: str, parts: Mapping[str, object], *, error: type[AstraError] = ScenarioError, place: str = "", remedy: str = ""
) -> None:
    """Raise `error` where a use is excluded; `place` and `remedy` replace those of the row."""
    for exclusion in exclusions(parts, (use,)):
        raise error(place or exclusion.place, exclusion.problem, remedy or exclusion.remedy)


def _features(parts: Mapping[str, object]) -> dict[str, tuple[str, object]]:
    """Features of the parts of a problem: key; key and value; ``part.*`` for keys without rows → the key, its value."""
    features: dict[str, tuple[str, object]] = {}
    for part, setting in parts.items():
        if part not in ("network", "semantics") or not isinstance(setting, StrictModel):
            if setting is not None and setting is not False:
                features[part] = part, setting
            continue
        for key in setting.differs():
            name, value = f"{part}.{key}", getattr(setting, key)
            features[name] = name, value
            if isinstance(value, str):
                features[f"{name}: {value}"] = name, value
            if name not in _LISTED:
                features.setdefault(f"{part}.*", (name, value))
    _, model = features.get("network.model", ("", NETWORK_MODELS[0]))
    if "network.factory" in features or model not in NETWORK_MODELS:
        features.pop(f"network.model: {model}", None)
        features[OWN] = "network.model", model
    return features


def _exclusion(
    row: Row, use: str, name: str, parts: Mapping[str, object], features: Mapping[str, tuple[str, object]]
) -> Exclusion:
    feature, value = features.get(name, (name, None))
    part, _, key = feature.partition(".")
    model = parts.get(part)
    usual = getattr(type(model)(), key) if key and isinstance(model, StrictModel) else None
    words = {"feature": feature, "key": key, "value": value, "usual": usual, "use": use.rpartition(".")[2]}
    place = feature if row.at_feature else _PLACES.get(use, use)
    return Exclusion(use, feature, place, row.problem.format(**parts, **words), row.remedy.format(**parts, **words))
