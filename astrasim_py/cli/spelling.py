"""Remedies in the spelling of the command line: models and readers name keys and values as YAML has them."""

import re
from collections.abc import Callable, Mapping

from astrasim_py.core.errors import AstraError, ErrorList, UnitError, UsageError

_SETTING = re.compile(r'\b([a-z]\w*): ("[^"]*"|\{[^}]*\}|\[[^\]]*\]|[^\s,;]+)')
_QUOTED = re.compile(r'write (e\.g\. )?"')


def quantity(parse: Callable[[object, str], int], text: str, option: str, example: str) -> int:
    """The value of an option that is a quantity. Raises UsageError, with an example of this option."""
    try:
        return parse(text, option)
    except UnitError as error:
        remedy = error.remedy
        if _QUOTED.match(remedy):
            remedy = f'write e.g. {option} "{example}"'
        raise UsageError(error.place, error.problem, remedy) from None


def spelled(text: str, options: Mapping[str, str], template: str = "") -> str:
    """A text in which settings of YAML, ``gbs: 512``, are options. `options`: key → option. `template`: of another key,
    with ``{key}`` and ``{value}``, without its quotes; empty: it stays.
    """

    def option(match: re.Match) -> str:
        key, value = match[1], match[2]
        if key in options:
            word = options[key]
            return word.replace("{value}", value) if "{value}" in word else f"{word} {_as_word(value)}"
        return template.format(key=key, value=value.strip('"')) if template else match[0]

    return _SETTING.sub(option, text)


def _as_word(value: str) -> str:
    """A value as one word of a shell."""
    return value if re.fullmatch(r'[\w.+/-]+|".*"', value) else f'"{value}"'


def retold(error: AstraError, place: Callable[[str], str], remedy: Callable[[str], str]) -> AstraError:
    """The same error, or list of errors, with other places and remedies."""
    if isinstance(error, ErrorList):
        return ErrorList([retold(member, place, remedy) for member in error.errors])
    return type(error)(place(error.place), error.problem, remedy(error.remedy))
