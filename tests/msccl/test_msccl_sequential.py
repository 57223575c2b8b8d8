"""Random algorithms in Python do what their statements say one after the other – verified, and run as written XML."""

from __future__ import annotations

import random
from collections import Counter

import pytest
from oracle import msccl_oracle as oracle

from astrasim_py.builders.dsl import algorithm
from astrasim_py.msccl.xml_writer import program_of, program_text
from astrasim_py.verification.verifier import verify


class Memory:
    """Cells of all ranks and what they hold, statement by statement."""

    def __init__(self, collective, n, chunks, in_place):
        self.collective, self.n, self.chunks, self.in_place = collective, n, chunks, in_place
        self.per = chunks // n
        self.size = {
            "input": self.per if collective == "all_gather" else chunks,
            "output": self.per if collective == "reduce_scatter" else chunks,
            "scratch": chunks,
        }
        self.holds = {self.cell(r, "input", k): Counter([(r, k)]) for r in range(n) for k in range(self.size["input"])}

    def cell(self, rank, buffer, k):
        if buffer == "scratch" or not self.in_place:
            return rank, buffer, k
        mine, whole = {"all_gather": ("input", "output"), "reduce_scatter": ("output", "input")}.get(
            self.collective, ("output", "input")
        )
        shift = rank * self.per if buffer == mine and self.collective in ("all_gather", "reduce_scatter") else 0
        return rank, whole, k + shift

    def promised(self, r, k):
        n, per = self.n, self.per
        return Counter(
            {
                "all_reduce": [(q, k) for q in range(n)],
                "reduce_scatter": [(q, r * per + k) for q in range(n)],
                "all_gather": [(k // per, k % per)],
                "all_to_all": [(k // per, r * per + k % per)],
            }[self.collective]
        )

    def wrong(self):
        return sum(
            self.holds.get(self.cell(r, "output", k)) != self.promised(r, k)
            for r in range(self.n)
            for k in range(self.size["output"])
        )


def random_algorithm(rng):
    """A random algorithm, and the number of cells that are wrong after its statements one after the other."""
    collective = rng.choice(("all_reduce", "all_gather", "reduce_scatter", "all_to_all"))
    n, in_place = rng.randint(2, 5), rng.random() < 0.6
    memory = Memory(collective, n, n * rng.randint(1, 2), in_place)

    def somewhere(count, *, defined):
        for _ in range(40):
            rank, buffer = rng.randrange(n), rng.choice(sorted(memory.size))
            if memory.size[buffer] >= count:
                at = rng.randint(0, memory.size[buffer] - count)
                cells = [memory.cell(rank, buffer, at + j) for j in range(count)]
                if not defined or all(cell in memory.holds for cell in cells):
                    return (rank, buffer, slice(at, at + count)), cells
        return None, []

    statements = []
    for _ in range(rng.randint(1, 25)):
        count, adds = rng.choice((1, 1, 1, 2)), rng.random() < 0.5
        source, read = somewhere(count, defined=True)
        target, written = somewhere(count, defined=adds)
        if not source or not target or set(read) & set(written):
            continue
        values = [memory.holds[cell] for cell in read]
        for cell, value in zip(written, values, strict=True):
            memory.holds[cell] = memory.holds[cell] + value if adds else value
        statements.append((target, source, adds, rng.choice((None, None, 0, 1))))

    def trace(a):
        def buffer(place):
            rank, name, _ = place
            return a[rank].scratch["x"] if name == "scratch" else getattr(a[rank], name)

        for target, source, adds, channel in statements:
            to, value = buffer(target), buffer(source)[source[2]]

            def step(to=to, at=target[2], value=value, adds=adds):
                if adds:
                    to[at] += value
                else:
                    to[at] = value

            if channel is None or target[0] == source[0]:
                step()
            else:
                with a.channel(channel):
                    step()

    define = algorithm(collective, in_place=in_place, scratch={"x": memory.chunks}, verify=False)
    return define(trace)(n, memory.chunks), memory.wrong()


@pytest.mark.slow
def test_random_algorithms_do_what_their_statements_say():
    some = Counter()
    for seed in range(150):
        made, wrong = random_algorithm(random.Random(seed))
        verdict = verify(made)
        assert (verdict.well_formed, verdict.terminates, verdict.race_free) == (True, True, True), seed
        assert verdict.wrong_cells == wrong, seed
        judged = oracle.judge(program_text(program_of(made)), schedules=2)
        assert judged.well_formed and judged.races == 0, (seed, judged)
        assert max(judged.min_slots, judged.min_slots_large) <= 2, (seed, judged)
        assert set(judged.wrong_cells) == {wrong}, (seed, judged)
        some[bool(judged.cells - wrong)] += 1
    assert some[True] > 50
