"""Errors survive what SimPy and process pools do to them, and print in one line."""

from __future__ import annotations

import pickle

import pytest

from astrasim_py.core import errors


def families(cls=errors.AstraError):
    yield cls
    for sub in cls.__subclasses__():
        yield from families(sub)


@pytest.mark.parametrize("cls", sorted(families(), key=lambda c: c.__name__), ids=lambda c: c.__name__)
def test_errors_are_rebuilt_from_their_args(cls):
    if cls is errors.ErrorList:
        error = cls([errors.TraceError("a.et", "is bad", "mend it"), errors.ScenarioError("b", "too")])
    else:
        error = cls("f.yaml:1:2: key", "value breaks rule", "write x")
    for copy in (type(error)(*error.args), pickle.loads(pickle.dumps(error))):
        assert str(copy) == str(error)
        assert copy.exit_code == error.exit_code
        assert copy.lines() == error.lines()


def test_an_error_is_one_line_with_place_and_remedy():
    error = errors.TraceError("x.et: node 7", "depends on 99\nwhich is missing", "remove it")
    assert error.lines() == ["x.et: node 7: depends on 99 which is missing; remove it"]


def test_an_error_with_a_very_long_word_shows_its_ends():
    (line,) = errors.TraceError("x.jsonl:3", f'has no key "{"9" * 5000}"', "see the text form").lines()
    assert line.startswith('x.jsonl:3: has no key "999') and line.endswith('9"; see the text form')
    assert len(line) < 2010


def test_a_list_exits_with_its_worst():
    found = errors.ErrorList([errors.ScenarioError("", "a"), errors.TraceError("", "b"), errors.CheckFailed("", "c")])
    assert found.exit_code == errors.EXIT_TRACE
    assert len(found.lines()) == 3


def test_the_order_of_exit_codes():
    assert errors.worst([0, 1, 2, 4]) == 4
    assert errors.worst([4, 3]) == 3
    assert errors.worst([3, 5]) == 5
    assert errors.worst([5, 70]) == 70
    assert errors.worst([]) == 0
