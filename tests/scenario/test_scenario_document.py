"""Whatever bytes a scenario file holds: a value with places, or one error with a place, within bounds."""

from __future__ import annotations

import os
import time

import pytest
from hypothesis import given
from hypothesis import strategies as st

from astrasim_py.core.document import MAX_BYTES, parse_document, read_document
from astrasim_py.core.errors import ScenarioError

BOMB = "\n".join(
    ["a: &a [x, x, x, x, x, x, x, x, x, x]"]
    + [f"{b}: &{b} [{', '.join(['*' + a] * 10)}]" for a, b in zip("abcdefgh", "bcdefghi", strict=True)]
)

REFUSED = {
    "duplicate key": ("a: 1\nb: 2\na: 3\n", 'f.yaml:3:1: a: the key "a" appears twice (first in line 1)'),
    "nested duplicate": ("a: {b: 1, b: 2}", 'f.yaml:1:11: a.b: the key "b" appears twice'),
    "tab": ("a:\n\tb: 1\n", "f.yaml:2:1: "),
    "two documents": ("a: 1\n---\nb: 2\n", "f.yaml:2:1: a second document begins here"),
    "python tag": ("a: !!python/object:os.system x", 'f.yaml:1:4: the tag "!!python/object:os.system" is not allowed'),
    "harmless tag": ("a: !!int 3", 'f.yaml:1:4: the tag "!!int" is not allowed'),
    "local tag": ("a: !x 3", 'f.yaml:1:4: the tag "!x" is not allowed'),
    "byte-order mark": (b"\xef\xbb\xbfa: 1", "f.yaml:1:1: the file begins with a byte-order mark"),
    "UTF-16": ("a: 1".encode("utf-16"), "f.yaml:1:1: the file begins with UTF-16"),
    "not UTF-8": (b"a: 1\nb: \xff", "f.yaml:2:4: the byte 0xff is not UTF-8"),
    "NUL": (b"a: 1\nb: \0", "f.yaml:2:4: a NUL character"),
    "control character": ("a: 1\nbé: \x07", "f.yaml:2:5: the character U+0007 is not allowed"),
    "half a surrogate": ('a: "\\ud800"', "f.yaml:1:4: a: half of a surrogate pair"),
    "beyond Unicode": ('a: "\\UFFFFFFFF"', "f.yaml:1:"),
    "empty": ("", "f.yaml:1:1: the file is empty"),
    "comment only": ("# nothing\n", "f.yaml:1:1: the file is empty"),
    "alias bomb": (BOMB, "more than 100,000 values once aliases are written out"),
    "self alias": ("a: &x [*x]", "an alias refers to the value that contains it"),
    "many aliases": ("a: &x 1\nb: [" + "*x, " * 101 + "]", "more than 100 aliases"),
    "unknown alias": ("a: *x", "f.yaml:1:4: found undefined alias 'x'"),
    "deep flow": ("[" * 100_000, "f.yaml:1:33: nested deeper than 32 levels"),
    "deep blocks": ("- " * 100_000, "nested deeper than 32 levels"),
    "deep keys": ("? " * 100_000, "nested deeper than 32 levels"),
    "many values": ("[" + "1," * 200_000 + "]", "more than 20,000 values"),
    "huge number": ("a: " + "9" * 5000, "f.yaml:1:4: a: a number of 5000 characters"),
    "list as key": ("? [a]\n: 1", "a key that is not plain text"),
    "merge of a number": ("<<: 3", "<< merges mappings only"),
    "open bracket": ("a: [1, 2", "f.yaml:1:9: "),
    "open quote": ("a: 'x", "f.yaml:1:6: "),
    "colon": ("a: b: c", "f.yaml:1:5: mapping values are not allowed here"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_hostile_text_is_refused_with_its_place(name):
    text, expected = REFUSED[name]
    began = time.process_time()
    with pytest.raises(ScenarioError) as caught:
        parse_document(text, "f.yaml")
    assert expected in str(caught.value)
    assert caught.value.exit_code == 2
    assert str(caught.value).startswith("f.yaml:")
    assert len(caught.value.lines()) == 1
    assert time.process_time() - began < 20


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("a: 010", "010"),  # no octals
        ("a: no", "no"),  # no booleans beside true and false
        ("a: 12:30:00", "12:30:00"),  # no sexagesimal numbers
        ("a: 2001-99-99", "2001-99-99"),  # no dates
        ("a: 0x10", "0x10"),
        ("a: 1e9", 1e9),
        ("a: -3", -3),
        ("a: 1_000", 1000),
        ("a: true", True),
        ("a: ~", None),
        ("a: '3'", "3"),
        ("a: 64 KiB", "64 KiB"),
        ("a: é", "é"),
        ("a: 1\r\n", 1),
    ],
)
def test_plain_values_mean_what_they_look_like(text, value):
    read = parse_document(text, "f.yaml").plain()["a"]
    assert read == value and type(read) is type(value)


def test_every_value_keeps_its_place():
    document = parse_document("a: 1\nb:\n  - x\n  - {c: 2}\n", "f.yaml")
    assert document.get("b", 1, "c").place == "f.yaml:4:9: b[1].c"
    assert document.get("b", 0).place == "f.yaml:3:5: b[0]"
    assert document.get("b").key_place("zzz") == "f.yaml:3:3: b"
    assert document.get("b", 1).key_place("c") == "f.yaml:4:6: b[1].c"
    assert document.get("b", 7) is None


def test_merged_keys_keep_their_place_and_own_keys_win():
    document = parse_document("a: &x {p: 1, q: 2}\nb: {<<: *x, q: 3}\n", "f.yaml")
    assert document.plain() == {"a": {"p": 1, "q": 2}, "b": {"q": 3, "p": 1}}
    assert document.get("b", "p").mark.line == 1
    assert document.get("b", "q").mark.line == 2


def test_only_regular_files_of_bounded_size_are_read(tmp_path):
    big = tmp_path / "big.yaml"
    with open(big, "wb") as stream:
        stream.truncate(100 * 2**20)
    cases = [big, tmp_path, tmp_path / "absent.yaml", "/dev/zero"]
    if hasattr(os, "mkfifo"):
        os.mkfifo(tmp_path / "pipe.yaml")
        cases.append(tmp_path / "pipe.yaml")
    for path in cases:
        with pytest.raises(ScenarioError) as caught:
            read_document(path)
        assert str(path) in str(caught.value)


def test_a_file_of_the_largest_size_is_read(tmp_path):
    path = tmp_path / "a.yaml"
    path.write_text("a: 1\n#" + "x" * (MAX_BYTES - 6))
    assert read_document(path).plain() == {"a": 1}


@given(st.binary(max_size=200))
def test_any_bytes_give_a_document_or_one_error(data):
    try:
        parse_document(data, "f.yaml")
    except ScenarioError as error:
        assert str(error).startswith("f.yaml")


@given(st.text(alphabet="ab:-[]{},&*!|>'\"%@`#? \n\t0.~<\\uU", max_size=60))
def test_any_text_of_yaml_characters_gives_a_document_or_one_error(text):
    try:
        document = parse_document(text, "f.yaml")
        document.plain()
        list(document.scalars())
    except ScenarioError as error:
        assert str(error).startswith("f.yaml")
