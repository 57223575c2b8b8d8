"""Which document belongs to which rank: patterns with ``{rank}``, archives, and lists of files."""

import os
import re
from collections.abc import Iterator, Sequence
from glob import escape, glob

from astrasim_py.core.errors import UsageError
from astrasim_py.core.files import RANK, named
from astrasim_py.pytorch.recording import MAX_RANKS
from astrasim_py.pytorch.sources import sources

_WILD = re.compile(r"(\{rank\}|\*)")
#: Endings of the members of an archive that are read where no pattern names them.
_ENDINGS = (".json", ".json.gz")


def rank_files(names: Sequence[str], option: str) -> dict[int | None, str]:
    """Documents by rank, in order of the ranks; the key of a single document of unknown rank is None.

    `names`: each a file, an archive, ``archive!member``, or a pattern of them with ``{rank}`` (decimal digits, the same
    wherever it stands) and ``*`` (anything but a slash). Without ``{rank}`` the ranks of several documents are guessed:
    the first number in which all their names differ, without folders or with them. `option`: place of errors.

    Raises UsageError: nothing found, two documents of one rank, ranks that cannot be told. Raises TraceError: a file
    that cannot be read.
    """
    documents: list[tuple[int | None, str]] = []
    for name in names:
        before = len(documents)
        documents += _documents(name)
        if len(documents) == before:
            if os.path.exists(name):
                raise UsageError(
                    option, f"{name} holds no {' or '.join(_ENDINGS)}", "name its member, as in FILE!MEMBER"
                )
            raise UsageError(option, f"nothing is called {name}", "check the name")
    ranks = [rank for rank, _ in documents]
    if len(documents) > 1 and None in ranks:
        ranks = _told_apart([source for _, source in documents], option)
    by_rank: dict[int | None, str] = {}
    for rank, (_, source) in zip(ranks, documents, strict=True):
        if by_rank.setdefault(rank, source) != source:
            raise UsageError(option, f"rank {rank} has two files, {by_rank[rank]} and {source}", "name one of them")
        if rank is not None and rank >= MAX_RANKS:
            raise UsageError(option, f"{source}: rank {rank} is not below {MAX_RANKS}", "check the pattern")
    return dict(sorted(by_rank.items(), key=lambda item: -1 if item[0] is None else item[0]))


def _documents(name: str) -> Iterator[tuple[int | None, str]]:
    """Rank (None: unknown) and source of each document of one name."""
    named(name, UsageError)
    path, _, member = (name, "", "") if os.path.exists(name) else name.partition("!")
    paths = sorted(glob(escape(path).replace(RANK, "*").replace("[*]", "*")))
    for file in [path] if os.path.exists(path) else paths:
        outer = [(None, file)] if file == path else _matching(path, [file], None)
        for rank, _ in outer:
            inside = [source.removeprefix(f"{file}!") for source in sources(file)]
            if inside == [file]:
                yield from [(rank, file)] if not member else ()
            else:
                members = [m for m in inside if member or m.endswith(_ENDINGS)]
                yield from ((r, f"{file}!{m}") for r, m in _matching(member or "**", members, rank))


def _matching(pattern: str, names: Sequence[str], rank: int | None) -> Iterator[tuple[int | None, str]]:
    """The names that match a pattern, with their ranks; `rank`: what an outer pattern said."""
    parts = [re.escape(part) for part in _WILD.split(pattern)]
    groups = iter([f"(?P<rank>{rank if rank is not None else '[0-9]+'})"])
    meaning = {re.escape("*"): "[^/]*"}
    regex = "".join(next(groups, "(?P=rank)") if part == re.escape(RANK) else meaning.get(part, part) for part in parts)
    for name in names:
        match = re.fullmatch(".*" if pattern == "**" else regex, name)
        if match:
            yield int(match["rank"]) if "rank" in match.groupdict() else rank, name


def _told_apart(names: Sequence[str], option: str) -> list[int | None]:
    for shown in ([name.rpartition("/")[2] for name in names], names):
        numbers = [[int(text) for text in re.findall(r"[0-9]{1,18}", name)] for name in shown]
        for column in zip(*numbers, strict=False):
            if len(set(column)) == len(column):
                return list(column)
    problem = f"the ranks of {len(names)} files are not in their names"
    raise UsageError(option, problem, f"write a pattern with {RANK}")
