"""``NAME[@key=value,…]``: every name and value can be written, and what is written is read as it was meant."""

from __future__ import annotations

import shlex

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.core.errors import UsageError
from astrasim_py.core.point_names import (
    PointName,
    parse_point_name,
    parse_point_names,
    parse_values,
    shell_word,
    values_text,
)

KEYS = st.from_regex(r"[a-z_]+(\.[a-z0-9_]+|\[[0-9]\])*", fullmatch=True)
VALUES = st.one_of(
    st.text(alphabet='ab1 ,@="{}:[]<>!\n', max_size=12),
    st.sampled_from(["1 MiB", "2:1", "{shape: ring, npus: 8}", "a,b=c", "a@b=c", "", '"', "50 GB/s", "[0, 1]", "x,"]),
).filter(lambda value: value[:1] != "=")
NAMES = st.from_regex(r"[a-z0-9_./ -]*(@[a-z0-9_./ -]*)?[a-z0-9_/]", fullmatch=True)
POINTS = st.builds(PointName, NAMES, st.dictionaries(KEYS, st.lists(VALUES, min_size=1, max_size=3).map(tuple)))


@given(POINTS)
def test_what_is_written_is_read_again(point):
    assert parse_point_name(str(point)) == point
    assert parse_values(values_text(point.values)) == point.values


@given(POINTS)
def test_a_shell_gives_the_word_back(point):
    assert shlex.split(shell_word(str(point))) == [str(point)]


@pytest.mark.parametrize(
    ("text", "name", "values"),
    [
        ("ring_vs_torus", "ring_vs_torus", {}),
        ("x.yaml@size=1 MiB", "x.yaml", {"size": ("1 MiB",)}),
        ("x@ size = 1 MiB , topology = ring", "x", {"size": ("1 MiB",), "topology": ("ring",)}),
        ("me@host/x@a=1", "me@host/x", {"a": ("1",)}),
        ("me@host/x", "me@host/x", {}),
        ("x@t={shape: ring, npus: 8},r=2:1", "x", {"t": ("{shape: ring, npus: 8}",), "r": ("2:1",)}),
        ("x@p=0,1,2,q=3", "x", {"p": ("0,1,2",), "q": ("3",)}),
        ('x@t="a,b=c",q=""', "x", {"t": ("a,b=c",), "q": ("",)}),
        ('x@t="say ""a@b"""', "x", {"t": ('say "a@b"',)}),
        ("x@a=1,a=2", "x", {"a": ("1", "2")}),
        ("x@jobs.a.start=1 us", "x", {"jobs.a.start": ("1 us",)}),
        ("x@workload[0].size=1", "x", {"workload[0].size": ("1",)}),
    ],
)
def test_names_as_people_write_them(text, name, values):
    assert parse_point_name(text) == (name, values)


def test_a_word_without_a_name_is_of_the_name_before_it():
    words = ["x@size=1,topology=ring", "@topology=torus", "y", "@size=2"]
    assert parse_point_names(words) == [
        ("x", {"size": ("1",), "topology": ("ring",)}),
        ("x", {"size": ("1",), "topology": ("torus",)}),
        ("y", {}),
        ("y", {"size": ("2",)}),
    ]


@pytest.mark.parametrize(
    ("text", "remedy"),
    [
        ("x@size>=1 MiB", '--where "size>=1 MiB"'),
        ("x@size==1", "--where"),
        ("x@size!=1", "--where"),
        ("x@a=b@c", "quote a value"),
        ('x@a="b', "quote a value"),
        ('x@a="b"c', "quote a value"),
        ("x@", "write e.g."),
    ],
)
def test_what_cannot_be_read_says_what_to_write(text, remedy):
    with pytest.raises(UsageError, match=remedy):
        parse_point_name(text)


def test_values_need_a_name():
    with pytest.raises(UsageError, match="write the name before it: NAME@a=1"):
        parse_point_names(["@a=1"])
