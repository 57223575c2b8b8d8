"""MSCCL programs compared."""

from __future__ import annotations

from astrasim_py.msccl.ir import MscclProgram


def same(one: MscclProgram, other: MscclProgram) -> bool:
    """True if two programs are equal but for file, lines, layout and order of gpus."""
    return _bare(one) == _bare(other)


def _bare(program: MscclProgram) -> MscclProgram:
    gpus = tuple(
        gpu._replace(
            tbs=tuple(tb._replace(steps=tuple(s._replace(line=0) for s in tb.steps), line=0) for tb in gpu.tbs),
            line=0,
        )
        for gpu in sorted(program.gpus, key=lambda gpu: gpu.id)
    )
    return program._replace(gpus=gpus, source="", line=0, layout=())
