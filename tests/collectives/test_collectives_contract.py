"""Contracts: the named ones equal the collectives' own post-conditions; YAML says the same or is refused by place."""

from __future__ import annotations

import dataclasses

import pytest

from astrasim_py.builders.registry import build, default_algorithm
from astrasim_py.chakra.schema import COLLECTIVE_CODES
from astrasim_py.collectives.collective import COLLECTIVES, CUSTOM, promise_of
from astrasim_py.collectives.contract import Contract, contract_from_data, read_contract
from astrasim_py.core.choices import COLLECTIVE_NAMES
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.verification.verifier import verify

MOVING = [name for name in COLLECTIVES if name != "barrier"]


def test_names_codes_and_promises_are_of_the_same_collectives():
    assert tuple(COLLECTIVES) == COLLECTIVE_NAMES
    assert {*COLLECTIVE_CODES} == {*COLLECTIVES, CUSTOM}


def made(collective: str, n: int):
    root = n - 1 if promise_of(collective).rooted else None
    return build(default_algorithm(collective), collective, n, root=root)


@pytest.mark.parametrize("collective", MOVING)
@pytest.mark.parametrize("n", [2, 3, 5])
def test_a_collective_keeps_its_contract_and_no_other(collective, n):
    a = made(collective, n)
    own = Contract.of(collective, n, a.chunks, a.root)
    verdict = verify(a, contract=own)
    assert (verdict.correct, verdict.wrong_cells) == (True, 0)
    # One promise changed: exactly that cell is wrong.
    cell = sorted(own.outputs)[-1]
    changed = dataclasses.replace(own, outputs={**own.outputs, cell: {**own.outputs[cell], (0, 0): 7}})
    verdict = verify(a, contract=changed)
    assert (verdict.correct, verdict.wrong_cells) == (False, 1)
    assert verdict.counterexample["rank"] == cell[0]


@pytest.mark.parametrize("collective", MOVING)
def test_contracts_survive_their_text(collective):
    a = made(collective, 3)
    own = Contract.of(collective, 3, a.chunks, a.root)
    again = Contract.from_text(own.to_text())
    assert (again.outputs, again.inputs) == (dict(own.outputs), own.inputs)


def test_inputs_that_are_not_defined_are_seen():
    a = made("all_reduce", 2)
    whole = Contract.of("all_reduce", 2, a.chunks)
    fewer = dataclasses.replace(whole, inputs=frozenset({(0, 0), (0, 1), (1, 0)}))
    verdict = verify(a, contract=fewer)
    assert verdict.correct is False and "undefined" in verdict.problem
    assert any("no step has written" in warning for warning in verdict.warnings)


def test_a_custom_collective_is_held_to_its_contract():
    a = made("broadcast", 3)
    custom = dataclasses.replace(a, collective=CUSTOM, root=None, contract=Contract.of("broadcast", 3, a.chunks, 2))
    assert verify(custom).ok is True
    assert verify(dataclasses.replace(custom, contract=Contract.of("broadcast", 3, a.chunks, 0))).ok is False
    nothing = verify(dataclasses.replace(custom, contract=None))
    assert nothing.ok is None and "give a contract" in nothing.problem


def test_yaml_says_what_python_says(tmp_path):
    path = tmp_path / "c.yaml"
    path.write_text(
        """\
ranks: 3
chunks: 2
inputs: {0: all, 1: [1]}
outputs:
  1: {0: "0:0"}
  2: {0: "0:0 + 2*1:1", 1: "0:1+0:1"}
"""
    )
    found = read_contract(path)
    assert found.inputs == {(0, 0), (0, 1), (1, 1)}
    assert found.outputs == {(1, 0): {(0, 0): 1}, (2, 0): {(0, 0): 1, (1, 1): 2}, (2, 1): {(0, 1): 2}}
    path.write_text("{collective: broadcast, ranks: 3, chunks: 2, root: 1}")
    assert read_contract(path) == Contract.of("broadcast", 3, 2, 1)


@pytest.mark.parametrize(
    ("document", "problem"),
    [
        ([], "is not a mapping"),
        ({"ranks": 2, "chunks": 1, "outputs": {0: {0: "0:0"}}, "rank": 1}, 'key "rank" is unknown'),
        ({"ranks": 0, "chunks": 1}, "ranks is 0"),
        ({"ranks": True, "chunks": 1}, "ranks is True"),
        ({"ranks": 2**20, "chunks": 2**20}, "too many"),
        ({"ranks": 2, "chunks": 1}, "outputs is NoneType"),
        ({"ranks": 2, "chunks": 1, "outputs": {}}, "promises nothing"),
        ({"ranks": 2, "chunks": 1, "outputs": {2: {0: "0:0"}}}, "outputs of rank 2"),
        ({"ranks": 2, "chunks": 1, "outputs": {0: {1: "0:0"}}}, "output chunk 1 of rank 0"),
        ({"ranks": 2, "chunks": 1, "outputs": {0: "0:0"}}, "outputs of rank 0 are not a mapping"),
        ({"ranks": 2, "chunks": 1, "outputs": {0: {0: "0-0"}}}, '"0-0" is not a chunk of a rank'),
        ({"ranks": 2, "chunks": 1, "outputs": {0: {0: "0:1"}}}, '"0:1" does not exist'),
        ({"ranks": 2, "chunks": 1, "outputs": {0: {0: "0*0:0"}}}, "does not exist"),
        ({"ranks": 2, "chunks": 1, "outputs": {0: {0: None}}}, "is not a chunk of a rank"),
        ({"ranks": 2, "chunks": 1, "inputs": {0: [3]}, "outputs": {0: {0: "0:0"}}}, "input chunk 3 of rank 0"),
        ({"ranks": 2, "chunks": 1, "collective": "broadcast"}, "root is None"),
        ({"ranks": 2, "chunks": 3, "collective": "all_gather"}, "3 chunks do not divide among 2 ranks"),
        ({"ranks": 2, "chunks": 2, "collective": "all_gather", "outputs": {}}, "gives both a collective and"),
        ({"ranks": 2, "chunks": 2, "collective": "all_father"}, "is not a collective"),
    ],
)
def test_a_bad_contract_is_refused_with_its_reason(document, problem):
    with pytest.raises(AlgorithmError) as error:
        contract_from_data(document, "c.yaml")
    assert problem in str(error.value)


@pytest.mark.parametrize(
    "text",
    [
        "a: [",
        "{ranks: 2, ranks: 2, chunks: 1, outputs: {0: {0: '0:0'}}}",
        "a: &a [1]\nb: *a",
        "\x00",
        "ranks: !!python/object:os.system {}",
    ],
)
def test_yaml_that_is_none_or_not_safe_is_one_line(tmp_path, text):
    path = tmp_path / "c.yaml"
    path.write_text(text)
    with pytest.raises(AlgorithmError) as error:
        read_contract(path)
    assert str(path) in str(error.value) and "\n" not in str(error.value)
    for missing in (tmp_path / "none.yaml", tmp_path):
        with pytest.raises(AlgorithmError):
            read_contract(missing)
