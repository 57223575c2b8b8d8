"""Programs as XML that MSCCL-style runtimes read.

Their parsers are small: attributes in double quotes with single spaces between them, at most 16 of an element, values
of at most 255 characters, no entities. So that is what is written.
"""

import os
from collections.abc import Iterable

from astrasim_py.collectives.chunks import PROTOCOL_SLOTS
from astrasim_py.collectives.collective import promise_of
from astrasim_py.core.errors import AlgorithmError, UsageError
from astrasim_py.core.files import write_file
from astrasim_py.msccl.from_traces import recorded_program
from astrasim_py.msccl.ir import ALGO_ATTRIBUTES, MscclProgram, collective_of
from astrasim_py.msccl.lower import lower
from astrasim_py.msccl.well_formed import MAX_CHILDREN, RUNTIMES
from astrasim_py.program.algorithm import Algorithm

#: Longest value.
MAX_VALUE = 255

#: Largest size, bytes: no limit, in the dialect where 0 does not say so.
_NO_LIMIT = 2**63 - 1


def program_of(algorithm: Algorithm, *, protocol: str | None = None, dialect: str | None = None) -> MscclProgram:
    """The MSCCL program of an algorithm: the recorded one, or a new one.

    Thread blocks and channels that its traces record are kept; where there are none, or where the traces were changed
    so that they fit no more, `astrasim_py.msccl.lower.lower` assigns them.

    `protocol`: ``Simple``, ``LL`` or ``LL128`` in place of the algorithm's own. `dialect`: one of `RUNTIMES`, whose
    limits a program that is made here observes; classic by default. Raises AlgorithmError: it cannot be expressed, or
    is beyond what the runtime executes. Raises UsageError: unknown protocol or dialect.
    """
    _check_word("protocol", protocol, PROTOCOL_SLOTS)
    _check_word("dialect", dialect, RUNTIMES)
    program = recorded_program(algorithm)
    if program is None:
        return lower(algorithm, protocol=protocol, dialect=dialect or "classic")
    return program if protocol is None else program._replace(proto=protocol)


def write_msccl(
    path: str | os.PathLike,
    algorithm: Algorithm,
    *,
    dialect: str | None = None,
    protocol: str | None = None,
    min_bytes: int | None = None,
    max_bytes: int | None = None,
) -> MscclProgram:
    """Write an algorithm as MSCCL-IR XML, whole or not at all.

    `dialect`: one of `RUNTIMES`; that of the program by default, which is classic unless it was read in another one.
    `protocol`: ``Simple``, ``LL`` or ``LL128`` in place of the algorithm's own (Simple where it has none). `min_bytes`,
    `max_bytes`: sizes of the full buffer, in bytes, for which a runtime may select the program; as the program says by
    default. `max_bytes` itself is excluded in the classic dialect and included in the others, where 0 means no limit.
    The classic runtime takes a program that does not say so for less than 128 MiB. Returns what was written. Raises
    AlgorithmError: it cannot be expressed in the dialect. Raises UsageError: unknown protocol or dialect, or sizes that
    are none. Raises OutputError: the file cannot be written.
    """
    program = program_of(algorithm, protocol=protocol, dialect=dialect)
    if min_bytes is not None or max_bytes is not None:
        low = min_bytes if min_bytes is not None else program.min_bytes
        high = max_bytes if max_bytes is not None else program.max_bytes
        for name, value in (("min_bytes", low), ("max_bytes", high)):
            if value is not None and not 0 <= value <= _NO_LIMIT:
                raise UsageError(name, f"{value} is no size in bytes", "write a whole number from 0")
        if low and high and high < low:
            raise UsageError("max_bytes", f"{high} is less than min_bytes, {low}", "write a window that holds a size")
        program = program._replace(min_bytes=low, max_bytes=high)
    write_file(path, program_text(program, dialect).encode())
    return program


def _check_word(name: str, word: str | None, among: Iterable[str]) -> None:
    if word is not None and word not in among:
        raise UsageError(name, f'"{word}" is none', f"write one of {', '.join(among)}")


def program_text(program: MscclProgram, dialect: str | None = None) -> str:
    """XML of a program.

    A program of the other dialect is translated: names of collectives, and the window of sizes, which is half open in
    the classic dialect and closed in the others.

    `dialect`: one of `RUNTIMES`; by default the program is written as it is. Raises AlgorithmError: a collective that
    the dialect does not have, a value too long, an element with too many others in it. Raises UsageError: unknown
    dialect.

    >>> from astrasim_py.builders.registry import build
    >>> print(program_text(program_of(build("ring", "all_gather", 2))).splitlines()[0][:40])
    <algo name="ring" proto="Simple" nchanne
    """
    _check_word("dialect", dialect, RUNTIMES)
    place = program.source or program.name
    lines = [f"<algo{_attributes(_head(program, dialect, place), place)}>"]
    _check_children(len(program.gpus), "gpus", place)
    for gpu in program.gpus:
        sizes = f'i_chunks="{gpu.i_chunks}" o_chunks="{gpu.o_chunks}" s_chunks="{gpu.s_chunks}"'
        lines.append(f'  <gpu id="{gpu.id}" {sizes}>')
        _check_children(len(gpu.tbs), f"thread blocks on gpu {gpu.id}", place)
        for tb in gpu.tbs:
            lines.append(f'    <tb id="{tb.id}" send="{tb.send}" recv="{tb.recv}" chan="{tb.chan}">')
            _check_children(len(tb.steps), f"steps in tb {tb.id} of gpu {gpu.id}", place)
            lines += [
                f'      <step s="{s}" type="{kind}" srcbuf="{srcbuf}" srcoff="{srcoff}" dstbuf="{dstbuf}" '
                f'dstoff="{dstoff}" cnt="{cnt}" depid="{depid}" deps="{deps}" hasdep="{hasdep}"/>'
                for s, kind, srcbuf, srcoff, dstbuf, dstoff, cnt, depid, deps, hasdep, _ in tb.steps
            ]
            lines.append("    </tb>")
        lines.append("  </gpu>")
    lines.append("</algo>\n")
    return "\n".join(lines)


def _check_children(number: int, noun: str, place: str) -> None:
    if number > MAX_CHILDREN:
        raise AlgorithmError(place, f"has {number} {noun}, runtimes read {MAX_CHILDREN}", "use a smaller algorithm")


def _head(program: MscclProgram, dialect: str | None, place: str) -> dict[str, object]:
    """Attributes of ``<algo>``."""
    coll, low, high, outofplace = program.coll, program.min_bytes, program.max_bytes, program.outofplace
    if dialect is not None:
        coll = _coll(program, dialect, place)
        # Only the newer dialects have outofplace.
        closed = outofplace is not None
        if dialect == "classic":
            outofplace = None
            if closed:
                high = _NO_LIMIT if not high else high + 1
        else:
            outofplace = outofplace if closed else int(not program.inplace)
            high = (high or 0) if closed else max((high or 0) - 1, 0)
            low, high = low or 0, 0 if high >= _NO_LIMIT - 1 else high
    program = program._replace(coll=coll, outofplace=outofplace, min_bytes=low, max_bytes=high)
    return {name: value for name, value in zip(ALGO_ATTRIBUTES, program, strict=False) if value is not None}


def _coll(program: MscclProgram, dialect: str, place: str) -> str:
    coll, (collective, root, _) = program.coll, collective_of(program)
    if dialect == "classic":
        coll = {"reducescatter": "reduce_scatter"}.get(coll, coll)
        if coll in ("gather", "scatter") or (root and program.outofplace is not None):
            # It is custom in this dialect, so only the name can identify it.
            if collective_of(program._replace(coll="custom"))[:2] != (collective, root):
                name = f"{coll.title()}(n={program.ngpus},root={root})"
                problem = f'the classic dialect knows such a {coll} by its name only, which is "{program.name}"'
                raise AlgorithmError(place, problem, f"name it {name}, or write the azure dialect")
            return "custom"
        other = "azure"
    else:
        coll = {"reduce_scatter": "reducescatter"}.get(coll, coll)
        if coll == "custom" and promise_of(collective).rooted:
            return collective
        other = "classic"
    names = RUNTIMES[dialect].collectives
    if coll not in names:
        problem = f"the {dialect} dialect has no {coll} collective, only {', '.join(sorted(names))}"
        remedy = f"write the {other} dialect" if coll in RUNTIMES[other].collectives else "name one of these"
        raise AlgorithmError(place, problem, remedy)
    return coll


def _attributes(values: dict[str, object], place: str) -> str:
    out = []
    for name, value in values.items():
        text = str(value).replace("&", "&amp;").replace('"', "&quot;").replace("<", "&lt;").replace(">", "&gt;")
        text = "".join(c if c.isprintable() else f"&#{ord(c)};" for c in text)
        if len(text.encode()) > MAX_VALUE:
            problem = f"{name} has {len(text.encode())} bytes, runtimes read {MAX_VALUE}"
            raise AlgorithmError(place, problem, f"give a shorter {name}")
        out.append(f' {name}="{text}"')
    return "".join(out)
