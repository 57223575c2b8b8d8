"""Whether the messages of a call are those of its size: algorithms of fixed sizes, programs for a range of sizes."""

from collections.abc import Iterator

from astrasim_py.collectives.collective import CUSTOM
from astrasim_py.core.choices import SWITCH
from astrasim_py.core.units import format_size, number_of
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.system.plan import CollectiveCall, Instance, Plan
from astrasim_py.system.programs import SEND
from astrasim_py.system.semantics import Semantics
from astrasim_py.verification.bounds import demand


def size_doubt(instance: Instance, semantics: Semantics) -> str:
    """Why the time of a call is not known to be that of its size; empty where it is.

    Sizes in bytes stay as they are written, whatever the size of the call. They are right for it where all messages
    together have the bytes that no algorithm can do without. Fewer are wrong, also of an algorithm whose sizes are in
    chunks and which is not verified. What stands for a reduction in a switch is only its load.
    """
    algorithm = instance.algorithm
    fixed = algorithm is not None and _fixed(algorithm, semantics)
    if algorithm is None or algorithm.source == SWITCH or (algorithm.verdict is True and not fixed):
        return ""
    standard = instance.type != CUSTOM and algorithm.contract is None
    call = f"{instance.type} of {format_size(instance.size)} on {len(instance.members)} ranks"
    need = demand(instance.type, instance.size, len(instance.members), bool(algorithm.actors)).total if standard else 0
    assert instance.only_call is not None, "its algorithm is over all members"
    moved = _sent(instance.only_call)
    if moved < need:
        return f"its messages have {format_size(moved)} in all, and {call} needs {format_size(need)} or more"
    if not fixed or (standard and moved == need):
        return ""
    return f"its messages have {format_size(moved)} in all, whatever the size: nothing says that they are for {call}"


def _fixed(algorithm: Algorithm, semantics: Semantics) -> bool:
    """Whether messages have the bytes that are written, whatever the size of a call."""
    if semantics.injected_sizes == "verbatim":
        return algorithm.first.has("comm_size")
    return not algorithm.scales


def _sent(call: CollectiveCall) -> int:
    """Bytes of all messages of a call."""
    programs = call.programs
    sends = [program.structure.kind == SEND for program in programs.different]
    if programs.member_bytes is not None:
        return int(programs.nbytes_matrix(range(len(programs)))[:, sends[0]].sum(dtype=object))
    sent = [sum(program.nbytes[rows].tolist()) for program, rows in zip(programs.different, sends, strict=True)]
    return sum(map(sent.__getitem__, programs.which.tolist()))


def size_notes(plan: Plan) -> list[str]:
    """What a person should know of the sizes of a plan's calls; one line for each algorithm and kind of note."""
    texts_of: dict[tuple[str, str], list[str]] = {}
    for instance in plan.instances.values:
        if instance.algorithm is None:
            continue
        for remedy, text in _notes(instance, instance.algorithm, plan.problem.semantics):
            name = instance.algorithm.source or instance.algorithm.name
            texts_of.setdefault((name, remedy), []).append(text)

    def more(calls: int) -> str:
        return f" (and {number_of(calls - 1, 'more call')})" if calls > 1 else ""

    return [f"{name}: {texts[0]}{more(len(texts))}; {remedy}" for (name, remedy), texts in texts_of.items()]


def _notes(instance: Instance, algorithm: Algorithm, semantics: Semantics) -> Iterator[tuple[str, str]]:
    """(remedy, what is wrong) of an instance."""
    if doubt := size_doubt(instance, semantics):
        text = f"{doubt}; its time may be that of another size, and its bandwidth is left empty"
        if semantics.injected_sizes == "verbatim":
            yield "write injected_sizes: symbolic under semantics for sizes that follow the call", text
        elif not algorithm.scales:
            yield "write made_for: SIZE, the size that its bytes are for, and they follow the call", text
        else:
            yield "check made_for" if algorithm.made_for is not None else "correct the algorithm", text
    stated = [attribute.name for trace in algorithm.given[:1] for attribute in trace.metadata]
    if not {"msccl_min_bytes", "msccl_max_bytes"}.isdisjoint(stated):
        from astrasim_py.msccl.ir import outside_window

        if outside := outside_window(algorithm, instance.size):
            yield "choose it by when: {size: …}, or change them", outside
