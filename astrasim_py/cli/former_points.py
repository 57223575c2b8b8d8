"""Former spellings of points, in the present one: words ``key=value`` behind a name, and ``--point``."""

import os
import re
from collections.abc import Sequence

from astrasim_py.core.point_names import SIGN, PointName, parse_values, values_text

_PAIR = re.compile(rf"[^-{SIGN}=][^{SIGN}=]*=")
#: Questions of ``explore`` that had a configuration behind them.
_QUESTIONS = ("--explain", "--why-not", "--diff")
#: Options of the verbs that had such words, which take no value.
_FLAGS = (
    *("--worst", "--open", "--serve", "--json", "--quiet", "--allow-outside", "--allow-code", "-h", "--help"),
    *("--what-if", "--figures", "--fresh"),
)


def renewed_pairs(words: list[str]) -> list[str]:
    """Words of a verb with its pairs behind the names. A key with two values behind one name means two points.

    >>> renewed_pairs(["x", "size=1 MiB", "--lines", "3", "topology=ring", "topology=mesh"])
    ['x@size=1 MiB,topology=ring', '@topology=mesh', '--lines', '3']
    >>> renewed_pairs(["x", "y", "size=1 MiB"])
    ['x@size=1 MiB', 'y@size=1 MiB']
    """
    places = _positions(words)
    pairs = [place for place in places if _PAIR.match(words[place]) and not os.path.exists(words[place])]
    names = [place for place in places if place not in pairs]
    if not pairs or not names:
        return words
    values: dict[str, tuple[str, ...]] = {}
    for place in pairs:
        key, _, value = map(str.strip, words[place].partition("="))
        values[key] = (*values.get(key, ()), value)
    twice = [key for key, texts in values.items() if len(texts) == 2]
    new = {place: [str(PointName(words[place], values))] for place in names} | {place: [] for place in pairs}
    if len(names) == 1 and len(twice) == 1:
        first, second = values[twice[0]]
        name = PointName(words[names[0]], values | {twice[0]: (first,)})
        new[names[0]] = [str(name), f"{SIGN}{values_text({twice[0]: (second,)})}"]
    return [text for place, word in enumerate(words) for text in new.get(place, [word])]


def renewed_points(words: list[str], points: Sequence[str]) -> list[str]:
    """Words of ``view``, with the values of ``--point`` behind the name.

    >>> renewed_points(["--port", "1", "x"], ["size=1 MiB,topology=ring", "size=1 MiB,topology=mesh"])
    ['--port', '1', 'x@size=1 MiB,topology=ring', '@size=1 MiB,topology=mesh']
    """
    first, *others = (f"{SIGN}{values_text(parse_values(text))}" for text in points)
    places = _positions(words)
    if not places:
        return words
    return [*words[: places[0]], f"{words[places[0]]}{first}", *others, *words[places[0] + 1 :]]


def renewed_configurations(words: list[str]) -> list[str]:
    """Words of ``explore`` with the configurations of its questions behind the file.

    >>> renewed_configurations(["x.yaml", "--diff", "tp=8", "tp=4", "--quiet"])
    ['x.yaml@tp=8', '@tp=4', '--diff', '--quiet']
    """
    values: list[str] = []
    rest: list[str] = []
    is_asked = False
    for word in words:
        option, sign, value = word.partition("=")
        if option in _QUESTIONS and sign:
            values.append(value)
            rest.append(option)
        elif is_asked and _PAIR.match(word) and SIGN not in word and not os.path.exists(word):
            values.append(word)
        else:
            rest.append(word)
        is_asked = word in _QUESTIONS or (is_asked and word in values)
    places = _positions([f"{word}=" if word in _QUESTIONS else word for word in rest])
    if not values or not places:
        return words
    name = f"{rest[places[0]]}{SIGN}{values[0]}"
    return [*rest[: places[0]], name, *(f"{SIGN}{value}" for value in values[1:]), *rest[places[0] + 1 :]]


def _positions(words: Sequence[str]) -> list[int]:
    """Places of the words that are neither options nor their values."""
    places, is_value = [], False
    for place, word in enumerate(words):
        is_option = word[:1] == "-" and len(word) > 1
        if not is_option and not is_value:
            places.append(place)
        is_value = is_option and "=" not in word and word not in _FLAGS
    return places
