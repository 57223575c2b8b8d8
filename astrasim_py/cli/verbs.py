"""The verbs of the command line and their actions; a command loads the module of its row alone."""

import os
import re
from collections.abc import Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import NamedTuple

from astrasim_py.core.errors import UsageError


class Verb(NamedTuple):
    """A verb, or an action of one: a line of help, the module of `astrasim_py.cli` that does it, and its actions.
    Without a module one of the actions must follow.
    """

    text: str
    module: str = ""
    actions: "Mapping[str, Verb]" = MappingProxyType({})

    @property
    def about(self) -> str:
        """What its help says beside what its module says."""
        text = "" if self.module else f"{self.text[0].upper()}{self.text[1:]}."
        actions = f"actions:\n{listed(self.actions)}" if self.actions else ""
        return "\n\n".join(filter(None, (text, actions)))


#: A first argument that is no verb means ``run``.
VERBS = {
    "run": Verb("run scenarios", "run"),
    "check": Verb("load and expand scenarios without simulating", "check"),
    "results": Verb(
        "what was run: list, explain, compare, plot, view",
        actions={
            "list": Verb("list stored points, also those of older versions of a scenario", "runs"),
            "explain": Verb("say where the time of a finished point went", "explain"),
            "compare": Verb("put two results side by side", "compare"),
            "plot": Verb("draw the figures of a finished scenario again", "plot"),
            "view": Verb("write a page that plays a finished point", "view"),
        },
    ),
    "verify": Verb("verify algorithms: correct, terminating, free of races", "verify"),
    "convert": Verb("turn an algorithm or a workload into another format", "convert"),
    "trace": Verb("lint, summarise, show, compare, shrink or share Chakra traces", "trace"),
    "synthesize": Verb("find an algorithm for a topology, with its distance from the bound", "synthesize"),
    "train": Verb("training of a model on a cluster: step time, memory, traces", "train"),
    "explore": Verb("price every way to train a model, and simulate the best", "explore"),
    "optimize": Verb("choose algorithms, pieces, buckets, order and placement for a whole step", "optimize"),
    "measured": Verb(
        "measured times: compare them with simulation, or fit numbers to them",
        actions={
            "check": Verb("check a machine: measured times against expected ones, and what fits", "measured_check"),
            "validate": Verb(
                "show how far off the results are",
                actions={
                    "collectives": Verb("measured times of collectives against simulation", "validate_measured"),
                    "training": Verb("published step times of training against closed forms", "validate_training"),
                    "cases": Verb("closed forms, and measured runs of ASTRA-sim", "validate"),
                },
            ),
            "calibrate": Verb(
                "find numbers of a model from measured times",
                actions={
                    "collectives": Verb("a profile's numbers from measured times of collectives", "calibrate"),
                    "training": Verb("four constants of each source of published step times", "calibrate_training"),
                },
            ),
        },
    ),
    "astra-sim": Verb("run ASTRA-sim's own inputs: same flags, same numbers", "astra_sim"),
    "list": Verb(
        "list presets, shapes, builders, models, plots, lessons; a topology, the schema, completion",
        "list",
        {
            "topology": Verb("say what a topology has, and draw it", "topology"),
            "schema": Verb("print the JSON Schema of scenarios", "schema"),
            "completion": Verb("print a script that completes words in bash, zsh or fish", "completion"),
        },
    ),
    "new": Verb(
        "copy a packaged lesson to start from",
        "new",
        {"lesson": Verb("exercises for a class: questions, and a check of your answers", "lesson")},
    ),
}
#: Short forms.
SHORT = {"explain": ("results", "explain"), "view": ("results", "view")}


def commands(actions: Mapping[str, Verb] = VERBS, path: tuple[str, ...] = ()) -> Iterator[tuple[tuple[str, ...], Verb]]:
    """Every verb and action with the words that name it."""
    for name, verb in actions.items():
        yield (*path, name), verb
        yield from commands(verb.actions, (*path, name))


def listed(verbs: Mapping[str, Verb]) -> str:
    """A line for each."""
    width = max(map(len, verbs))
    return "\n".join(f"  {name:<{width}}  {verb.text}" for name, verb in verbs.items())


def summary(prog: str) -> str:
    """What the program says of itself."""
    short = ", ".join(f"{name} = {' '.join(path)}" for name, path in SHORT.items())
    return (
        f"Simulate distributed-ML communication. {prog} SCENARIO.yaml … is short for {prog} run SCENARIO.yaml …\n\n"
        f"verbs:\n{listed(VERBS)}\n\nshort forms: {short}\n\n{prog} help VERB says more."
    )


def command(words: Sequence[str]) -> tuple[tuple[str, ...], Verb, list[str]]:
    """The verb, with its actions, that words begin with, and what follows. Raises UsageError: no such verb."""
    rest = [*SHORT.get(words[0], words[:1]), *words[1:]]
    if rest[0] not in VERBS:
        if os.path.exists(rest[0]):
            return ("run",), VERBS["run"], rest
        raise UsageError(rest[0], "is no verb, and no file of that name is here", _nearest(rest[0]))
    path: tuple[str, ...] = (rest.pop(0),)
    verb = VERBS[path[0]]
    while rest and rest[0] in verb.actions:
        path, verb = (*path, rest[0]), verb.actions[rest.pop(0)]
    if not verb.module and rest and rest[0] not in ("-h", "--help"):
        from astrasim_py.core.fields import did_you_mean

        raise UsageError(" ".join(path), f'"{rest[0]}" is no action of this', did_you_mean(rest[0], verb.actions))
    return path, verb, rest


def _nearest(word: str) -> str:
    """The verb or action that a word is most like; else the verbs."""
    from astrasim_py.core.fields import did_you_mean

    names = {path[-1]: " ".join(path) for path, _ in reversed([*commands()])}
    hint = did_you_mean(word, names)
    near = re.fullmatch(r'did you mean "(.*)"\?', hint)
    return f'did you mean "{names[near[1]]}"?' if near else f"write one of {', '.join(VERBS)}"
