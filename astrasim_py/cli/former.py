"""Former spellings of the command line, which are accepted for one version: each row rewrites words into the present
spelling. A row is of a command as it is spelled now; it sees the words that follow the verb and its action.
"""

import os
import re
import shlex
from collections.abc import Callable, Sequence
from typing import NamedTuple

from astrasim_py.cli.former_points import renewed_configurations, renewed_pairs, renewed_points
from astrasim_py.cli.verbs import SHORT, VERBS

#: The version in which former spellings go.
GOES_IN = "0.4.0"

#: Words that follow a verb, in a former spelling → in the present one, or the same.
Rewrite = Callable[[list[str]], list[str]]


class FormerVerb(NamedTuple):
    """A former verb: all words that follow it → all words of the present command line, and an example of both."""

    rewrite: Rewrite
    examples: tuple[tuple[str, str], ...]


class FormerWords(NamedTuple):
    """Former words of a command: what they were is rewritten by one function. Examples are of whole command lines."""

    command: tuple[str, ...]
    rewrite: Rewrite
    examples: tuple[tuple[str, str], ...] = ()


def renamed(old: str, new: str) -> Rewrite:
    """An option that has another name now, ``--old X`` and ``--old=X``."""

    def rewrite(words: list[str]) -> list[str]:
        return [re.sub(rf"^{re.escape(old)}(?=$|=)", new, word) for word in words]

    return rewrite


def value_renamed(option: str, old: str, new: str) -> Rewrite:
    """A value of an option that has another name now."""

    def rewrite(words: list[str]) -> list[str]:
        before = ["", *words]
        return [
            new if word == old and last == option else f"{option}={new}" if word == f"{option}={old}" else word
            for last, word in zip(before, words, strict=False)
        ]

    return rewrite


def taken(words: Sequence[str], option: str, *, many: bool = False) -> tuple[list[str], list[str]]:
    """The values of an option, and the other words. `many`: an option takes all words up to the next option."""
    values: list[str] = []
    rest: list[str] = []
    left = list(words)
    while left:
        word = left.pop(0)
        if word.startswith(f"{option}="):
            values.append(word.partition("=")[2])
        elif word == option:
            first = True
            while left and (first or many) and not left[0].startswith("-"):
                values.append(left.pop(0))
                first = False
        else:
            rest.append(word)
    return values, rest


def _to(*words: str) -> Rewrite:
    return lambda rest: [*words, *rest]


def _validate(words: list[str]) -> list[str]:
    measured, rest = taken(words, "--measured", many=True)
    if measured:
        figures, rest = taken(rest, "--figures")
        drawn = ["--figures", "--out", figures[-1]] if figures else []
        return ["measured", "validate", "collectives", *measured, *rest, *drawn]
    rest = renamed("--set", "--only")(rest)
    rows, rest = taken(rest, "--training")
    if rows:
        action = "calibrate" if "--calibrate" in rest else "validate"
        return ["measured", action, "training", *rows, *(word for word in rest if word != "--calibrate")]
    return ["measured", "validate", "cases", *rest]


def _calibrate(words: list[str]) -> list[str]:
    return ["measured", "calibrate", "collectives", *renamed("--out", "--output")(words)]


#: Former verbs.
FORMER_VERBS = {
    "runs": FormerVerb(_to("results", "list"), (("runs results/x", "results list results/x"),)),
    "compare": FormerVerb(_to("results", "compare"), (("compare a b --top 3", "results compare a b --top 3"),)),
    "plot": FormerVerb(_to("results", "plot"), (("plot results/x", "results plot results/x"),)),
    "validate": FormerVerb(
        _validate,
        (
            ("validate --jobs 0", "measured validate cases --jobs 0"),
            ("validate cases.csv --set a --set=b", "measured validate cases cases.csv --only a --only=b"),
            ("validate --measured a b --strict", "measured validate collectives a b --strict"),
            ("validate --measured a --figures f", "measured validate collectives a --figures --out f"),
            ("validate --training r.csv --set s", "measured validate training r.csv --only s"),
            ("validate --training r.csv --calibrate", "measured calibrate training r.csv"),
        ),
    ),
    "calibrate": FormerVerb(
        _calibrate, (("calibrate a b --out c.json", "measured calibrate collectives a b --output c.json"),)
    ),
    "topology": FormerVerb(_to("list", "topology"), (("topology ring:4 --draw", "list topology ring:4 --draw"),)),
    "schema": FormerVerb(_to("list", "schema"), (("schema", "list schema"),)),
    "lesson": FormerVerb(_to("new", "lesson"), (("lesson 1 2 3.5", "new lesson 1 2 3.5"),)),
}


def _view(words: list[str]) -> list[str]:
    """``--point`` behind the name, and ``--out PAGE``, which is ``--output`` now; a folder that is there stays."""
    points, rest = taken(words, "--point")
    outs, others = taken(rest, "--out")
    if outs and not os.path.isdir(outs[-1]):
        rest = [*others, "--output", outs[-1]]
    return renewed_points(rest, points) if points else rest


def _synthesize(words: list[str]) -> list[str]:
    names = {"--npus": "--ranks", "--jobs": "--threads", "--schedule": "--write-occupied", "--out": "--output"}
    for old, new in names.items():
        words = renamed(old, new)(words)
    return words


#: Former words of commands, in the order in which they are rewritten.
FORMER_WORDS = (
    FormerWords(
        ("trace",),
        lambda words: ["slice", *words[1:]] if words[:1] == ["filter"] else words,
        (("trace filter in out --names x", "trace slice in out --names x"),),
    ),
    *(
        FormerWords(
            command,
            value_renamed("--format", "table", "text"),
            ((f"{' '.join(command)} x.yaml --format table", f"{' '.join(command)} x.yaml --format text"),),
        )
        for command in (("run",), ("results", "list"), ("results", "compare"))
    ),
    FormerWords(("run",), renamed("--points", "--share"), (("run x.yaml --points 1/2", "run x.yaml --share 1/2"),)),
    FormerWords(
        ("results", "explain"),
        renewed_pairs,
        (
            ("explain x size=1 topology=a", "explain x@size=1,topology=a"),
            ("explain x size=1 topology=a topology=b --lines 3", "explain x@size=1,topology=a @topology=b --lines 3"),
        ),
    ),
    FormerWords(
        ("results", "compare"),
        renewed_pairs,
        (("compare a b size=1 --top 3", "results compare a@size=1 b@size=1 --top 3"),),
    ),
    FormerWords(
        ("results", "view"),
        _view,
        (
            ("view --port 1 x --point size=1,a=2 --point a=3", "view --port 1 x@size=1,a=2 @a=3"),
            ("view x --point size=1 --out page.html", "view x@size=1 --output page.html"),
            ("view x --point size=1 --out=page", "view x@size=1 --output page"),
        ),
    ),
    FormerWords(
        ("explore",),
        renewed_configurations,
        (
            ("explore x.yaml --explain tp=8,pp=4 --quiet", "explore x.yaml@tp=8,pp=4 --explain --quiet"),
            ("explore --why-not=tp=8 x.yaml", "explore --why-not x.yaml@tp=8"),
            ("explore x.yaml --diff tp=8 tp=4", "explore x.yaml@tp=8 @tp=4 --diff"),
            ("explore --fresh x.yaml --explain tp=8", "explore --fresh x.yaml@tp=8 --explain"),
        ),
    ),
    FormerWords(
        ("synthesize",),
        _synthesize,
        (
            ("synthesize --npus 0-3 --jobs 2", "synthesize --ranks 0-3 --threads 2"),
            ("synthesize --schedule=s.csv --out a.xml", "synthesize --write-occupied=s.csv --output a.xml"),
        ),
    ),
    FormerWords(
        ("trace", "synthesize"),
        renamed("--ranks", "--world-size"),
        (("trace synthesize out --from x --ranks 8", "trace synthesize out --from x --world-size 8"),),
    ),
    FormerWords(
        ("train",),
        renamed("--nodes", "--detail"),
        (("train nobody --nodes fine", "train nobody --detail fine"),),
    ),
    FormerWords(
        ("convert",),
        renamed("--msccl-dialect", "--dialect"),
        (("convert a b --msccl-dialect azure", "convert a b --dialect azure"),),
    ),
    FormerWords(
        ("optimize",),
        renewed_pairs,
        (("optimize x.yaml size=1 --out f", "optimize x.yaml@size=1 --out f"),),
    ),
)


def renewed(words: Sequence[str]) -> list[str]:
    """Words of a command line in the present spelling.

    >>> renewed(["runs", "results/x"])
    ['results', 'list', 'results/x']
    """
    present = list(words)
    if present and present[0] in FORMER_VERBS:
        present = FORMER_VERBS[present[0]].rewrite(present[1:])
    for row in FORMER_WORDS:
        length = _length(present, row.command)
        if length is not None:
            present = [*present[:length], *row.rewrite(present[length:])]
    return present


def _length(words: Sequence[str], command: tuple[str, ...]) -> int | None:
    """How many words of a command line name this command; None if it is another one. ``run`` need not be said."""
    if words and words[0] in SHORT:
        return 1 if SHORT[words[0]] == command else None
    if command == ("run",) and words and words[0] not in VERBS:
        return 0
    return len(command) if tuple(words[: len(command)]) == command else None


def note(former: Sequence[str], present: Sequence[str]) -> str:
    """A line that names the present spelling."""
    old, new = (" ".join(map(_quoted, words)) for words in (former, present))
    return f'"{old}" is now "{new}"; the former spelling goes in {GOES_IN}'


def _quoted(word: str) -> str:
    return word if re.fullmatch(r"[\w@%+=:,./-]+", word) else shlex.quote(word)
