"""Print a script that completes verbs, actions, options, their values and names of files in a shell.

bash: eval "$(astrasim-py list completion bash)"          in ~/.bashrc
zsh:  eval "$(astrasim-py list completion zsh)"           in ~/.zshrc, after compinit
fish: astrasim-py list completion fish > ~/.config/fish/completions/astrasim-py.fish
"""

import argparse
from collections.abc import Iterator

from astrasim_py.cli.new import GROUPS as LESSON_GROUPS
from astrasim_py.cli.new import lesson_names
from astrasim_py.cli.parsers import Command, every_command
from astrasim_py.cli.verbs import SHORT, VERBS
from astrasim_py.core.point_names import SIGN

SHELLS = ("bash", "zsh", "fish")


def arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("shell", choices=SHELLS, metavar="SHELL", help=", ".join(SHELLS))


def run(args: argparse.Namespace) -> int:
    print("\n".join(_fish() if args.shell == "fish" else [_TABLES.format(**_cases()), _SHELLS[args.shell]]))
    return 0


def _named() -> Iterator[tuple[tuple[str, ...], Command]]:
    """Every command by its words, and by its short form if it has one."""
    short = {path: name for name, path in SHORT.items()}
    for command in every_command():
        yield command.path, command
        if command.path in short:
            yield (short[command.path],), command


def _options(command: Command) -> list[str]:
    return ["--help", *(word for action in command.arguments for word in action.option_strings)]


def _values(action: argparse.Action) -> list[str]:
    return [*map(str, action.choices)] if action.choices is not None else []


def _words(command: Command) -> list[str]:
    """What may follow besides options and names of files."""
    positional = [action for action in command.arguments if not action.option_strings]
    lessons = [*LESSON_GROUPS, *lesson_names()] if command.path == ("new",) else []
    return [*command.actions, *(value for action in positional for value in _values(action)), *lessons]


def _is_result(action: argparse.Action) -> bool:
    """Whether it is an argument that names stored points: a folder in ``results``, too."""
    return not action.option_strings and SIGN in str(action.metavar)


def _is_name(action: argparse.Action) -> bool:
    """Whether it is an argument without values of its own: a file, a folder, a result, a topology …"""
    return not action.option_strings and not _values(action)


def _takes_file(action: argparse.Action) -> bool:
    """Whether its value is the name of a file, or of a folder."""
    names = action.metavar if isinstance(action.metavar, tuple) else (action.metavar or "",)
    return any(part in name for name in names for part in ("FILE", "FOLDER", "PREFIX", ".csv", ".json", "IN"))


#: What bash and zsh have in common: sets `next_words` to what may follow, and `next_files` where names of files may.
_TABLES = """\
_astrasim_py_names() {{
  command ls results 2>/dev/null | tr '\\n' ' '
}}
_astrasim_py_next() {{
  next_words="" next_files=""
  case "$1 $2" in
{values}
  esac
  case "$1" in
{words}
  esac
  case "$3" in
    -*) case "$1" in
{options}
      esac ;;
  esac
}}
_astrasim_py_is() {{
  case "$1" in
{paths}
      return 0 ;;
  esac
  return 1
}}"""
#: The words before the present one that name a verb and its action; ``help`` before them counts for nothing.
_WALK = """\
  local i at="" next_words next_files
  for ((i = {first}; i < {present}; i++)); do
    [ "$i ${{{words}[i]}}" != "{first} help" ] || continue
    _astrasim_py_is "$at ${{{words}[i]}}" || break
    at="$at ${{{words}[i]}}"
  done"""
_SHELLS = {
    "bash": f"""\
_astrasim_py() {{
{_WALK.format(first=1, present="COMP_CWORD", words="COMP_WORDS")}
  local current="${{COMP_WORDS[COMP_CWORD]}}"
  _astrasim_py_next "$at" "${{COMP_WORDS[COMP_CWORD-1]}}" "$current"
  COMPREPLY=($(compgen -W "$next_words" -- "$current"))
  [ -z "$next_files" ] || COMPREPLY+=($(compgen -f -- "$current"))
}}
complete -o filenames -F _astrasim_py astrasim-py""",
    "zsh": f"""\
_astrasim_py() {{
{_WALK.format(first=2, present="CURRENT", words="words")}
  _astrasim_py_next "$at" "${{words[CURRENT-1]}}" "${{words[CURRENT]}}"
  compadd -- ${{=next_words}}
  [ -z "$next_files" ] || _files
}}
compdef _astrasim_py astrasim-py""",
}


def _cases() -> dict[str, str]:
    """Branches of the tables of bash and zsh."""
    top = " ".join((*VERBS, *SHORT, "help", "--help", "--version"))
    commands = {_path(path): command for path, command in _named()}
    values: dict[tuple[str, str], list[str]] = {}
    for path, command in commands.items():
        for action in command.arguments:
            takes = action.option_strings and action.nargs != 0
            text = " ".join(_values(action))
            for option in action.option_strings if takes else ():
                values.setdefault((text, "1" if _takes_file(action) else ""), []).append(f'"{path} {option}"')
    lines = [
        f'    {"|".join(patterns)}) next_words="{text}" next_files={files}; return ;;'
        for (text, files), patterns in values.items()
    ]
    words = [f'    "") next_words="{top}" next_files=1 ;;']
    for path, command in commands.items():
        files = "1" if any(_is_name(action) for action in command.arguments) else ""
        known = _words(command) + (["$(_astrasim_py_names)"] if any(map(_is_result, command.arguments)) else [])
        words.append(f'    "{path}") next_words="{" ".join(known)}" next_files={files} ;;')
    options = [
        f'        "{path}") next_words="{" ".join(_options(command))}" next_files= ;;'
        for path, command in commands.items()
    ]
    options.append('        "") next_words="--help --version" next_files= ;;')
    return {
        "values": "\n".join(lines),
        "words": "\n".join(words),
        "options": "\n".join(options),
        "paths": "|\\\n".join(f'    "{path}"' for path in commands) + ")",
    }


#: Whether the words before the cursor name this command.
_FISH = """\
function __astrasim_py_at
  set -l at
  for word in (commandline -opc)[2..]
    switch "$at $word"
      case " help"
        continue
      case {paths}
        set at "$at $word"
      case "*"
        break
    end
  end
  test "$at" = "$argv[1]"
end"""


def _fish() -> Iterator[str]:
    """The script of fish, which shows the help of each word, too."""
    commands = dict(_named())
    yield _FISH.format(paths=" ".join(f"'{_path(path)}'" for path in commands))
    start = "complete -c astrasim-py"
    for name, verb in VERBS.items():
        yield f"{start} -n \"__astrasim_py_at ''\" -a {name} -d {_quoted(verb.text)}"
    for name in (*SHORT, "help"):
        yield f"{start} -n \"__astrasim_py_at ''\" -a {name}"
    for path, command in commands.items():
        at = f"{start} -n \"__astrasim_py_at '{_path(path)}'\""
        files = "" if any(map(_is_name, command.arguments)) else " -f"
        if words := _words(command):
            yield f"{at}{files} -a {_quoted(' '.join(words))}"
        if any(map(_is_result, command.arguments)):
            yield f"{at} -a '(command ls results 2>/dev/null)'"
        for action in command.arguments:
            names = [f"-l {word[2:]}" if word.startswith("--") else f"-s {word[1:]}" for word in action.option_strings]
            takes = "" if action.nargs == 0 else " -r" if _takes_file(action) else " -x"
            given = f" -a {_quoted(' '.join(_values(action)))}" if _values(action) else ""
            if names:
                yield f"{at} {' '.join(names)}{takes}{given} -d {_quoted((action.help or '').replace('%%', '%'))}"


def _path(path: tuple[str, ...]) -> str:
    return "".join(f" {word}" for word in path)


def _quoted(text: str) -> str:
    """Text as one word of fish."""
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
