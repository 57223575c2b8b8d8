"""Names of points as a person writes them: ``NAME[@key=value,…]``.

A comma separates where a ``key=`` follows it. A value that holds ``@`` or ``=``, or begins with a quote, is quoted:
``NAME@topology="a@b",size=1 MiB``; in it ``""`` stands for a quote. A key may be given twice: a point has one of the
values.
"""

import re
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from astrasim_py.core.errors import UsageError

#: Before the values of a point; a word that begins with it is of the name before it.
SIGN = "@"
_KEY = re.compile(r'\s*([^,=@"]*[^,=@"\s])\s*=\s*')
_QUOTED = re.compile(r'"((?:[^"]|"")*)"\s*(,|\Z)')
_PLAIN = re.compile(r'(?!")([^@]*?)\s*(?:(,)(?=[^,=@"]*[^,=@"\s]\s*=)|\Z)')
#: Ends of keys and beginnings of values that are of a condition such as ``size>=1 MiB``.
_COMPARES = "<>!"


class PointName(NamedTuple):
    """A name and the swept values behind it. `values`: key → values of which a point has one."""

    name: str
    values: Mapping[str, tuple[str, ...]] = {}

    def __str__(self) -> str:
        """The text that `parse_point_name` reads.

        >>> str(PointName("ring_vs_torus", {"size": ("1 MiB",), "topology": ("a@b", "ring")}))
        'ring_vs_torus@size=1 MiB,topology="a@b",topology=ring'
        """
        return f"{self.name}{SIGN}{values_text(self.values)}" if self.values else self.name


def parse_point_name(text: str) -> PointName:
    """Read ``NAME[@key=value,…]``. An ``@`` before which no values begin is of the name. Raises UsageError.

    >>> parse_point_name("results/ring_vs_torus@size=1 MiB,topology=ring")
    PointName(name='results/ring_vs_torus', values={'size': ('1 MiB',), 'topology': ('ring',)})
    >>> parse_point_name("me@work/x@shape={ring: 8, latency: 1 us},ratio=2:1").values
    {'shape': ('{ring: 8, latency: 1 us}',), 'ratio': ('2:1',)}
    >>> parse_point_name("me@work/x")
    PointName(name='me@work/x', values={})
    """
    signs = [match.start() for match in re.finditer(SIGN, text)]
    for sign in signs:
        if (pairs := _pairs(text[sign + 1 :])) is not None:
            return PointName(text[:sign], _by_key(pairs, text))
    if any(_KEY.match(text, sign + 1) for sign in signs):
        raise UsageError(text, "is no NAME@key=value,…", 'quote a value that holds @ or =: NAME@key="a=b"')
    if text[-1:] == SIGN:
        raise UsageError(text, f"names no values behind {SIGN}", 'write e.g. NAME@size="1 MiB"')
    return PointName(text)


def parse_values(text: str, place: str = "") -> dict[str, tuple[str, ...]]:
    """Read ``key=value,…``, as behind the ``@``; nothing where the text is blank. Raises UsageError, at `place`.

    >>> parse_values('size=1 MiB,topology=ring,size="a,b=2"')
    {'size': ('1 MiB', 'a,b=2'), 'topology': ('ring',)}
    """
    pairs = _pairs(text) if text.strip() else []
    if pairs is None:
        raise UsageError(place, f'"{text}" is not key=value,…', 'write e.g. size="1 MiB"')
    return _by_key(pairs, text)


def parse_point_names(words: Sequence[str], read: Callable[[str], PointName] = parse_point_name) -> list[PointName]:
    """Read several names. A word such as ``@topology=ring`` is of the name before it, and has its values of the keys
    that it does not give. `read`: of one name. Raises UsageError.

    >>> [str(name) for name in parse_point_names(["x@size=1 MiB,model=a", "@model=b", "y"])]
    ['x@size=1 MiB,model=a', 'x@size=1 MiB,model=b', 'y']
    """
    names: list[PointName] = []
    for word in words:
        if word[:1] != SIGN:
            names.append(read(word))
            continue
        if not names:
            raise UsageError(word, "is of no name", f"write the name before it: NAME{word}")
        names.append(PointName(names[-1].name, {**names[-1].values, **parse_values(word[1:])}))
    return names


def values_text(values: Mapping[str, Sequence[str]]) -> str:
    """The text that `parse_values` reads.

    >>> values_text({"size": ["1 MiB"], "topology": ["a=b"]})
    'size=1 MiB,topology="a=b"'
    """
    return ",".join(f"{key}={_quoted(value)}" for key, several in values.items() for value in several)


def shell_word(text: str) -> str:
    """A text as one word of a shell.

    >>> print(shell_word("x@topology=ring"), shell_word("x@size=1 MiB"), shell_word('x@a="b,c=d"'))
    x@topology=ring "x@size=1 MiB" 'x@a="b,c=d"'
    """
    if re.fullmatch(r"[\w@%+=:,./-]+", text):
        return text
    quote = "'" if re.search(r'["$`\\!]', text) else '"'
    return quote + text.replace("'", "'\\''" if quote == "'" else "'") + quote


def _pairs(text: str) -> list[tuple[str, str]] | None:
    """Keys and values of ``key=value,…``; None where a text is not of this form."""
    pairs, place, more = [], 0, True
    while more:
        key = _KEY.match(text, place)
        value = key and (_QUOTED.match(text, key.end()) or _PLAIN.match(text, key.end()))
        if not key or not value:
            return None
        is_quoted = text[key.end() : key.end() + 1] == '"'
        pairs.append((key[1], value[1].replace('""', '"') if is_quoted else value[1]))
        place, more = value.end(), bool(value[2])
    return pairs


def _by_key(pairs: Sequence[tuple[str, str]], text: str) -> dict[str, tuple[str, ...]]:
    values: dict[str, tuple[str, ...]] = {}
    for key, value in pairs:
        if key[-1] in _COMPARES or value[:1] == "=":
            problem = f"{key}= compares, and values behind {SIGN} are those that points have"
            raise UsageError(text, problem, 'write --where "size>=1 MiB" for rows')
        values[key] = (*values.get(key, ()), value)
    return values


def _quoted(value: str) -> str:
    """A value as it is written in a name."""
    if value == value.strip() and value[:1] != '"' and not re.search("[@=]", value):
        return value
    return '"{}"'.format(value.replace('"', '""'))
