"""Tables of options of docs/cli.md, made from the parsers."""

import argparse
import re
from collections import Counter

from astrasim_py.cli.names import NAME_HELP
from astrasim_py.cli.parsers import Command, every_command
from astrasim_py.cli.verbs import SHORT, VERBS

#: Options that every command that prints has, which no table names.
_EVERYWHERE = {"--format", "--json"}
#: Commands from which on an option is explained once.
_SHARED_FROM = 2
_BLOCK = re.compile(r"(<!-- (table|verbs|shared)(?:: ([\w -]+))? -->\n)(.*?)(<!-- end -->)", re.DOTALL)


def filled(page: str) -> str:
    """A page whose blocks hold what the parsers say now. Raises SystemExit: a command has no block, or two."""
    commands = {command.name: command for command in every_command() if command.arguments}
    named = [match[3] for match in _BLOCK.finditer(page) if match[2] == "table"]
    wrong = {name for name, count in Counter(named).items() if count > 1} | commands.keys() ^ set(named)
    if wrong:
        raise SystemExit(f"docs/cli.md: one block <!-- table: NAME --> for each of {', '.join(sorted(wrong))}")
    shared = _shared(commands.values())

    def block(match: re.Match) -> str:
        texts = {"verbs": _verbs, "shared": lambda: _rows(shared)}
        text = _table(commands[match[3]], shared) if match[2] == "table" else texts[match[2]]()
        return f"{match[1]}\n{text}\n\n{match[5]}"

    return _BLOCK.sub(block, page)


def _verbs() -> str:
    """The verbs with their actions, a line each."""
    lines = ["verb | what it does", "---|---", *(f"`{name}` | {verb.text}" for name, verb in VERBS.items())]
    short = (f"`{name}` = `{' '.join(path)}`" for name, path in SHORT.items())
    return "\n".join([*lines, f"\nShort forms: {', '.join(short)}."])


def _shared(commands) -> dict[str, str]:
    """What several commands have with one meaning: how it is written, and what it means."""
    counts = Counter(
        (_written(action), _meaning(action))
        for command in commands
        for action in command.arguments
        if not _EVERYWHERE & {*action.option_strings}
    )
    most: dict[str, tuple[int, str]] = {}
    for (written, meaning), count in counts.items():
        most[written] = max(most.get(written, (0, "")), (count, meaning))
    return {written: meaning for written, (count, meaning) in sorted(most.items(), key=_order) if count >= _SHARED_FROM}


def _order(item: tuple[str, object]) -> tuple[bool, str]:
    """Arguments before options."""
    return item[0].startswith("`-"), item[0]


def _table(command: Command, shared: dict[str, str]) -> str:
    arguments = [action for action in command.arguments if not _EVERYWHERE & {*action.option_strings}]
    is_shared = {_written(action) for action in arguments if shared.get(_written(action)) == _meaning(action)}
    own = {_written(action): _meaning(action) for action in arguments if _written(action) not in is_shared}
    names = [name for name in dict.fromkeys(map(_written, arguments)) if name in is_shared]
    parts = [_rows(own)] if own else []
    if names:
        parts.append(f"Shared: {', '.join(_without_value(name) for name in names)}.")
    return "\n\n".join(parts) or "No options of its own."


def _rows(meanings: dict[str, str]) -> str:
    return "\n".join(["option | meaning", "---|---", *(f"{name} | {text}" for name, text in meanings.items())])


def _without_value(written: str) -> str:
    return f"{written.split(' ')[0].strip('`')}".join("``")


def _written(action: argparse.Action) -> str:
    """An option as it is written, with its value; an argument by its name."""
    value = action.metavar or (", ".join(map(str, action.choices)) if action.choices else action.dest.upper())
    value = " ".join(value) if isinstance(value, tuple) else value.replace("|", "/")
    if not action.option_strings:
        return f"`{value}{'…' if action.nargs in ('+', '*') else ''}`"
    names = [*action.option_strings]
    if len(names) > 1 and names[0].startswith("--") and names[1].replace("_", "-") == names[0]:
        names = names[:1]
    takes = "" if action.nargs == 0 else f" [{value}]" if action.nargs == "?" else f" {value}"
    return f"`{', '.join(names)}{takes}{'…' if action.nargs == '+' else ''}`"


def _meaning(action: argparse.Action) -> str:
    return (action.help or "").replace(NAME_HELP, "stored points").replace("%%", "%").replace("|", "\\|")
