"""Lists of options of docs/cli.md, made from the parsers."""

import argparse
import re
from collections import Counter

from astrasim_py.cli.names import NAME_HELP
from astrasim_py.cli.parsers import Command, every_command
from astrasim_py.cli.train import KEYS
from astrasim_py.cli.verbs import SHORT, VERBS

#: Options that every command that prints has, which no table names.
_EVERYWHERE = {"--format", "--json"}
#: Commands from which on an option is explained once.
_SHARED_FROM = 2
_BLOCK = re.compile(r"(<!--(table|verbs|shared)(?::([\w-]+))?-->\n)(.*?)(<!--/-->)", re.DOTALL)


def filled(page: str) -> str:
    """A page whose blocks hold what the parsers say now. Raises SystemExit: a command has no block, or two."""
    commands = {command.name.replace(" ", "_"): command for command in every_command() if command.arguments}
    named = [match[3] for match in _BLOCK.finditer(page) if match[2] == "table"]
    wrong = {name for name, count in Counter(named).items() if count > 1} | commands.keys() ^ set(named)
    if wrong:
        raise SystemExit(f"docs/cli.md: one block <!--table:NAME-->…<!--/--> for each of {', '.join(sorted(wrong))}")
    shared = _shared(commands.values())

    def block(match: re.Match) -> str:
        texts = {"verbs": _verbs, "shared": lambda: _rows(shared)}
        text = _table(commands[match[3]], shared) if match[2] == "table" else texts[match[2]]()
        return f"{match[1]}\n{text}\n\n{match[5]}"

    return _BLOCK.sub(block, page)


def _verbs() -> str:
    """The verbs with their actions, a line each."""
    lines = [f"* `{name}`: {verb.text}" for name, verb in VERBS.items()]
    short = (f"`{name}` = `{' '.join(path)}`" for name, path in SHORT.items())
    return "\n".join([*lines, f"\nShort forms: {', '.join(short)}."])


def _shared(commands) -> dict[str, tuple[str, str]]:
    """What several commands have with one meaning: how it is written, what it means, and the note that most have."""
    uses = Counter(
        (_written(action), *_meaning(action))
        for command in commands
        for action in command.arguments
        if not _EVERYWHERE & {*action.option_strings}
    )
    shared: dict[str, tuple[str, str]] = {}
    for written in sorted({written for written, _, _ in uses}, key=lambda written: (written[1] == "-", written)):
        meanings: Counter[str] = Counter()
        for (name, meaning, _), count in uses.items():
            meanings[meaning] += count if name == written else 0
        meaning, count = meanings.most_common(1)[0]
        notes = Counter({note: n for (name, text, note), n in uses.items() if (name, text) == (written, meaning)})
        if count >= _SHARED_FROM:
            note, most = notes.most_common(1)[0]
            shared[written] = meaning, note if 2 * most > count else ""
    return shared


def _table(command: Command, shared: dict[str, tuple[str, str]]) -> str:
    own: dict[str, tuple[str, str]] = {}
    also, keys = [], []
    for action in command.arguments:
        written, (meaning, note) = _written(action), _meaning(action)
        if _EVERYWHERE & {*action.option_strings}:
            continue
        usual = shared.get(written, ("", ""))
        if command.name == "train" and action.dest in KEYS:
            name = _without_value(written)
            same = name == f"`--{action.dest.replace('_', '-')}`"
            keys.append(name if same else f"{name} (`{action.dest}`)")
        elif usual[0] == meaning and (note or not usual[1]):
            also.append(f"{_without_value(written)}{f' ({note})' if note and note != usual[1] else ''}")
        else:
            own[written] = meaning, note
    parts = [_rows(own)] if own else []
    parts += [f"[Keys of a training](training.md#training): {', '.join(keys)}."] if keys else []
    parts += [f"Shared: {', '.join(also)}."] if also else []
    return "\n\n".join(parts) or "No options of its own."


def _rows(meanings: dict[str, tuple[str, str]]) -> str:
    return "\n".join(f"* {name}: {text}{note and f' ({note})'}" for name, (text, note) in meanings.items())


def _without_value(written: str) -> str:
    """The name of an option, the long one of two; an argument as it is."""
    match = re.search(r"--[\w-]+", written)
    return f"`{match[0]}`" if match else written


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


def _meaning(action: argparse.Action) -> tuple[str, str]:
    """What help says, and the note of this command in parentheses at its end; empty: none."""
    text = (action.help or "").replace(NAME_HELP, "stored points").replace("%%", "%")
    match = re.fullmatch(r"(.*?) \((.*)\)", text) if action.option_strings else None
    return (match[1], match[2]) if match else (text, "")
