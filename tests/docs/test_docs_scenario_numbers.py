"""Numbers in the opening comments of scenarios, and in docs/lessons.md, are those of the runs.

A claim is a piece of such a text, written out from the rows of a run; it must stand there. A number of the text that is
in no claim must be one of the scenario's own keys, or be listed as given.
"""

from __future__ import annotations

import re

import pytest
from worlds import claims_of_collectives, claims_of_workloads  # noqa: F401
from worlds.claims import CLAIMS, Rows

import astrasim_py as ap
from astrasim_py.scenario.load import load_scenario

#: Numbers of a text that no run gives: of papers, of other programs, of measurements, of wall time, of formulas.
GIVEN = {
    "all_to_all_torus": {
        "2 links a direction, the mesh 8, the 2-D torus 16, the 3-D torus 32",
        "bruck sends 6 messages a rank",
        "39.4 and 65.6 GB/s",  # claims of another run, below
    },
    "comet_break_even": {"Kadiyala et al., 2022", "up to 1.4 times", "at 64 GB/s", "MP 64 takes 136 s", "284 GB"},
    "comet_clusters": {
        "(Kadiyala et al., 2022)",
        "eight NICs of 400 Gb/s",
        "Reference Architecture Guide, 2024",
        "finds up to 7.7",
        "10.2 times as fast in closed form",
        "at MP 64",
        "they take 44 s. TPU v4 and v5e",
        "which fits all of these, and model parallelism (MP) of 2 or 8",
    },
    "comet_dlrm": {"1.2T parameters in 16 bits", "65,536 samples", "46 GB each", "88 GB each", "337 GB each"},
    "comet_transformer_1t": {
        "Kadiyala et al., 2022",
        "128 DGX A100",
        "280 GB at MP 8 and 59 GB at MP 64",
        "up to 1.4 times",
        "MP 64 takes 136 s, and the gain is 1.8 and 1.9 times",
        "1T parameters",
    },
    "crossover": {"in each of 5 steps", "twice 31/32 of it in 10", "5 alpha = 3.06 S / B", "31 messages at once"},
    "failures": {"0 -> 3 -> 2 -> 1 instead of 0 -> 1", "each of 30 steps"},
    "find_the_bug": {"(exit code 4)", "(exit code 3)", "(2 under its protocol, Simple)"},
    "first_steps": {"2 (n - 1)"},
    "from_pytorch": {"Recorded were 655, 2,225 and 1,014 ms", "it sends 16 KiB"},
    "hgx_h100": {"20.6 % with 2 GPUs, 12.0 % with 4, 9.7 % with 8", "57.426 µs", "14 steps of 2 links", "2**30 bytes"},
    "hierarchical_dgx": {"300 GB/s a direction", "one 25 GB/s NIC"},
    "in_network": {"an H100", "2(n-1) times", "2(n-1)/n S", "Measured on 8 H100s: 1.27 to 1.30"},
    "latency_or_bandwidth": {"2 (n-1)/n x size / time"},
    "memory_or_network": {"16 bytes of state", "(ZeRO 1, 319 GB)"},
    "noisy_neighbour": {"of 32 NPUs"},
    # Slowdowns, of which rows have none: tests/scenario/test_scenario_open_loop.py.
    "open_loop": {
        "take 86 times as long or more",
        "half take 1.8 times as long",
        "1.4 times for small ones, 4.2 for large ones",
        "take 86 times as long as alone, or more",
        "1.4 times where they share; large ones 1.8 and 4.2 times",
    },
    "packed_or_random": {"the stencil takes 0.4 to 1.6 % longer", "the stencil at most 1.6 %"},
    "parallelism": {"60.4 GB, and sums 7.3 GB", "9.6 GB", "0.52 to 0.61 s", "waits for 7 microbatches"},
    "ring_vs_torus": {
        "(arXiv 2408.11008, Fig. 4)",
        "takes 189 steps",
        "2 hops on the 8x8 torus, 3 on 4x4x4, 6 on the hypercube and 14 on the mesh",
        "still pays 7 hops",
        "ASTRA-sim's analytical backends show 1.000",
    },
    "step_at_scale": {
        "1.34 billion parameters",
        "4,096 tokens",
        "on 1 to 64 nodes",
        "2 sequences, and of 16, for which there are not enough beyond 16 nodes",
        "adds 0.2 ms to every collective",
        "in early 2025",
        "bench_final2_mfu2.csv",
        "gkarfakis19/Rapid-LLM",
        "Apache-2.0",
        "on 4, 8 and 16 nodes",
        "on 4, 8 and 64 nodes",
    },
    "real_machines": {
        "256 GPUs",
        "needs 8 pieces",
        "eight rings at 339 GB/s",
        "340 were measured on as many H100s",
        "posts 510 messages",
        "--set 'sweep.size=[1 KiB, 8 KiB, 64 KiB, 512 KiB, 4 MiB, 32 MiB, 256 MiB, 4 GiB]'",
    },
    "synthesized": {"32 NPUs"},
    "synthesized_training": {
        "24 layers of a GPT of 1.2 billion",
        "64 NPUs",
        "in 16 bits",
        "half of an A100's peak",
        "`synthesized_training_256` is the same on 256 NPUs",
    },
    "synthesized_training_256": {"256 NPUs", "15 points of up to 3 million", "130,560 transfers", "510 steps"},
    "themis": {
        "on 64 NPUs",
        "(Rashidi et al., ISCA 2022)",
        "512 NPUs with 64 chunks of 1 GiB (50 GiB/s, 1 ns, no contention) takes 35.0 ms fixed and 13.6 ms Themis",
        "ASTRA-sim 1.0's tutorial gives 35,008 and 13,636 µs",
    },
}


@pytest.fixture
def runs(repo, tmp_path):
    def rows(name: str, overrides) -> Rows:
        scenario = load_scenario(repo / "scenarios" / f"{name}.yaml", (*overrides, "plots=[]"))
        result = ap.run(scenario, out=tmp_path, figures=False, level="summary")
        return Rows(result.rows, result.summaries)

    return rows


def texts(repo, name: str) -> tuple[str, str, str]:
    """The opening comment of a scenario, its lesson, and its keys."""
    written = (repo / "scenarios" / f"{name}.yaml").read_text("utf-8")
    lines = written.splitlines()
    head = lines[: next(i for i, line in enumerate(lines) if not line.startswith("#"))]
    lesson = re.search(
        rf"^`{name}`: (.*?)\n\n", (repo / "docs/lessons.md").read_text("utf-8"), re.MULTILINE | re.DOTALL
    )
    body = "\n".join(lines[len(head) :])
    return (
        " ".join(" ".join(line[1:].split()) for line in head[1:]),
        " ".join(lesson[1].split()) if lesson else "",
        body,
    )


NUMBER = re.compile(r"\d+(?:,\d{3})*(?:\.\d+)?")


def unclaimed(text: str, said: list[str], body: str, given: set[str]) -> list[str]:
    """Numbers of a text that are in no claim, are no keys of the scenario, and are not given."""
    for piece in sorted({*said, *given}, key=len, reverse=True):
        text = text.replace(piece, " ")
    return sorted({*NUMBER.findall(text)} - {*NUMBER.findall(body)})


#: Claims on a run of a scenario with other keys → the scenario.
CHANGED = {"all_to_all_torus_hashed": "all_to_all_torus"}


def test_every_scenario_has_claims(repo):
    assert {*CLAIMS} - {*CHANGED} == {path.stem for path in (repo / "scenarios").glob("*.yaml")}


@pytest.mark.parametrize("name", [pytest.param(name, marks=more["marks"]) for name, (_, more) in CLAIMS.items()])
def test_numbers_of_a_scenario_are_those_of_its_run(repo, runs, name):
    function, more = CLAIMS[name]
    scenario = CHANGED.get(name, name)
    said = list(function(runs(scenario, more["overrides"])))
    head, lesson, body = texts(repo, scenario)
    assert [piece for piece in said if piece not in head and piece not in lesson] == []
    if name == scenario:
        own = GIVEN.get(name, set())
        assert [piece for piece in own if piece not in head and piece not in lesson] == []
        assert (unclaimed(head, said, body, own), unclaimed(lesson, said, body, own)) == ([], [])
