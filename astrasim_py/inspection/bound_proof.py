"""What proves the bound of a stored point, with the cut where the run had no need to look for one."""

from astrasim_py.collectives.collective import CUSTOM, promise_of
from astrasim_py.results.model import Summary
from astrasim_py.system.bound import at_best
from astrasim_py.system.problem import Problem
from astrasim_py.verification.bounds import may_reduce


def bound_proof(summary: Summary, problem: Problem) -> str:
    """What proves the bound of a run. On a whole shape of equal links a run takes quick bounds alone, which are as
    tight as any cut: where the point is one collective, its exact cut is named too.
    """
    row, proof = summary.row, summary.row.bound_by or ""
    if not proof or "GB/s" in proof or row.algorithm is None or may_reduce(problem.topology):
        return proof
    (call,) = summary.collectives
    if call.type == CUSTOM or promise_of(call.type).rooted:
        return proof
    from astrasim_py.verification.certified import CertifiedBounds

    certificate = CertifiedBounds(at_best(problem)).certificate(call.type, call.size, summary.npu_of)
    return f"{proof}; {certificate}" if certificate is not None and certificate.exact else proof
