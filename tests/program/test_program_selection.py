"""The first case that holds carries out a call."""

from __future__ import annotations

import pytest

from astrasim_py.builders.registry import build
from astrasim_py.core.errors import AlgorithmError, ScenarioError
from astrasim_py.program.selection import AlgorithmTable, Case, FromFunction, When


def case(name: str, made: list | None = None, **when) -> Case:
    def make(collective, ranks, root):
        if made is not None:
            made.append((collective, ranks, root))
        return build(name, collective, ranks, root=root if collective == "broadcast" else None)

    return Case(source=FromFunction(lambda call: make(*call[:3])), when=When(**when))


def test_the_first_case_that_holds_is_taken():
    table = AlgorithmTable(
        {
            "all_reduce": [
                case("recursive_doubling", size="<= 256 KiB"),
                case("halving_doubling", ranks=">= 8 and < 16", group="dp"),
                case("ring"),
            ]
        }
    )
    for size, ranks, group, expected in (
        (2**18, 8, "dp", "recursive_doubling"),
        (2**18 + 1, 8, "dp", "halving_doubling"),
        (2**18 + 1, 8, "dp.3", "halving_doubling"),
        (2**18 + 1, 8, "tp", "ring"),
        (2**18 + 1, 4, "dp", "ring"),
        (2**18 + 1, 16, "dp", "ring"),
    ):
        assert table.select("all_reduce", size, ranks, group).name == expected


@pytest.mark.parametrize(
    ("text", "holds"),
    [
        ("<= 8 B", (7, 8)),
        ("< 8 B", (7,)),
        ("== 8 B", (8,)),
        (">= 8 B", (8, 9)),
        ("> 8 B", (9,)),
        ("> 6 B and < 9 B", (7, 8)),
    ],
)
def test_comparisons_mean_what_they_say(text, holds):
    condition = When(size=text)
    assert [size for size in (7, 8, 9) if condition.holds(size, 4, "")] == list(holds)


def test_algorithms_are_made_once():
    made: list = []
    table = AlgorithmTable({"broadcast": [case("binomial_tree", made)]})
    first = table.select("broadcast", 8, 4, "")
    assert table.select("broadcast", 9, 4, "x") is first
    assert table.select("broadcast", 8, 4, "", 1).root == 1
    assert table.select("broadcast", 8, 5, "").ranks == 5
    assert made == [("broadcast", 4, 0), ("broadcast", 4, 1), ("broadcast", 5, 0)]


def test_a_call_without_a_case_is_said():
    table = AlgorithmTable(
        {"all_reduce": [case("ring", size="<= 1 KiB")]}, default=lambda *call: build("ring", *call[:2])
    )
    with pytest.raises(AlgorithmError, match=r"algorithms.all_reduce: no case holds for 2 KiB on 4 ranks of group tp"):
        table.select("all_reduce", 2048, 4, "tp")
    # The default serves collectives without cases only.
    assert table.select("all_gather", 2048, 4, "tp").name == "ring"
    with pytest.raises(AlgorithmError, match="no case holds"):
        AlgorithmTable({}).select("all_gather", 1, 2, "")


@pytest.mark.parametrize(
    ("when", "problem"),
    [
        ({"bytes": "<= 1"}, "bytes: is not a key here; write one of size, ranks, group, node, switches"),
        ({"size": "256 KiB"}, 'size "256 KiB" is not a comparison; write e.g. "<= 256 KiB"'),
        ({"size": "<= 256"}, "it has no unit"),
        ({"ranks": ">= many"}, 'ranks "many" is not a whole number'),
        ({"ranks": "=> 8"}, "is not a comparison"),
    ],
)
def test_conditions_that_cannot_be_read_are_said(when, problem):
    with pytest.raises(ScenarioError, match=problem):
        When(**when)
