"""The table of builders, by name."""

import inspect
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Unpack

from astrasim_py.builders.draft import check_count
from astrasim_py.builders.keys import BuilderKeys
from astrasim_py.collectives.collective import COLLECTIVES, CUSTOM, collective_name, promise_of
from astrasim_py.core.by_need import load
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.program.algorithm import Algorithm

#: Collectives of the builders that serve all.
_ALL = tuple(COLLECTIVES)
#: Builders of collectives for which the user names no algorithm.
_DEFAULTS = {
    **dict.fromkeys(("all_reduce", "all_gather", "reduce_scatter"), "ring"),
    **dict.fromkeys(("broadcast", "reduce", "gather", "scatter"), "binomial_tree"),
    "all_to_all": "direct",
    "barrier": "dissemination",
}

#: Options that are whole numbers from 1.
_COUNTS = ("chunks", "window", "channels", "slots")

_OF_YOUR_OWN = "give one of your own, e.g. algorithms: {custom: {file: alltonext.xml}}"

#: Largest group that is built.
MAX_RANKS = 2**20


def default_algorithm(collective: str) -> str:
    name = collective_name(collective)
    if name == CUSTOM:
        raise AlgorithmError("algorithms.custom", "a custom collective needs an algorithm", _OF_YOUR_OWN)
    return _DEFAULTS[name]


def rooted(collective: str, root: int) -> BuilderKeys:
    """The root as an option of a builder; none where the collective has none."""
    return {"root": root} if promise_of(collective).rooted else {}


def build_default(collective: str, ranks: int, root: int = 0) -> Algorithm:
    """The algorithm of a collective for which the user names none."""
    return build(default_algorithm(collective), collective, ranks, **rooted(collective, root))


def factory_of(algorithm: str) -> Callable[..., Algorithm]:
    """The factory of a builder, imported now."""
    factory = load(BUILDERS[algorithm][1])
    return partial(factory, build) if algorithm == "hierarchical" else factory


def options_of(algorithm: str) -> tuple[str, ...]:
    parameters = inspect.signature(factory_of(algorithm)).parameters.values()
    return tuple(dict.fromkeys([*(p.name for p in parameters if p.kind is p.KEYWORD_ONLY), "channels"]))


def build(algorithm: str, collective: str, ranks: int, **options: Unpack[BuilderKeys]) -> Algorithm:
    """Build an algorithm.

    Parameters
    ----------
    algorithm : str
        The name of a builder, as in a scenario: ``ring``, ``direct`` …
    collective : str
    ranks : int
        Size of the group.
    **options
        Of the builder, for example ``root`` (0 by default), ``chunks``, ``bidirectional``, ``window``; and of every
        builder ``channels``: that many instances side by side, on channels of their own (see `split`).

    Returns
    -------
    Algorithm

    Raises
    ------
    AlgorithmError
        An unknown algorithm or option, a collective for which it is not defined, or a group of a wrong size.

    Examples
    --------
    >>> build("ring", "all_reduce", 4).messages
    24
    """
    if algorithm not in BUILDERS:
        raise AlgorithmError("", f'"{algorithm}" is not a builder', f"write one of {', '.join(BUILDERS)}")
    collective = collective_name(collective, algorithm)
    place = f"{algorithm} {collective} over {ranks} ranks"
    if collective not in BUILDERS[algorithm][0]:
        able = ", ".join(name for name, (served, _) in ALGORITHMS.items() if collective in served)
        raise AlgorithmError(place, f"{algorithm} has no {collective}", f"use one of {able}" if able else _OF_YOUR_OWN)
    if type(ranks) is not int or not 1 <= ranks <= MAX_RANKS:
        raise AlgorithmError(place, f"{ranks!r} is not a group size", f"use 1..{MAX_RANKS} ranks")
    keys: dict[str, Any] = {**options}
    if keys.get("root") is None:
        keys.pop("root", None)
    allowed = options_of(algorithm)
    for option in keys:
        if option not in allowed and not (option == "root" and not promise_of(collective).rooted):
            listed = ", ".join(allowed) or "none"
            raise AlgorithmError(place, f"{algorithm} has no option {option}", f"its options: {listed}")
    for option in _COUNTS:
        if option in keys and (option == "chunks" or keys[option] is not None):
            check_count(keys[option], option, place)
    if promise_of(collective).rooted:
        root = keys.setdefault("root", 0)
        if type(root) is not int or not 0 <= root < ranks:
            raise AlgorithmError(place, f"root {root!r} is not one of {ranks} ranks", f"write a root in 0..{ranks - 1}")
    elif "root" in keys:
        raise AlgorithmError(place, f"{collective} takes no root", "drop the root")
    channels = 1 if "nodes" in keys else keys.pop("channels", 1)
    if channels > 1 and collective == "barrier":
        raise AlgorithmError(place, "a barrier has nothing to spread over channels", "drop channels")
    result = factory_of(algorithm)(collective, ranks, **keys)
    if channels == 1:
        return result
    from astrasim_py.builders.split import split

    return split(result, channels, verify=False)


build_algorithm = build  # under the name by which the interface has it

#: Builders of algorithms of ranks only. Name -> (collectives it is defined for, factory taking collective, ranks and
#: keyword options, as ``module:name``); that of `hierarchical` takes first what builds its phases, `build`.
ALGORITHMS: Mapping[str, tuple[tuple[str, ...], str]] = {
    "ring": (_ALL, "astrasim_py.builders.ring:build"),
    "direct": (_ALL, "astrasim_py.builders.direct:build"),
    "recursive_doubling": (("all_reduce", "all_gather", "barrier"), "astrasim_py.builders.recursive_doubling:build"),
    "halving_doubling": (
        ("all_reduce", "reduce_scatter", "all_gather"),
        "astrasim_py.builders.recursive_doubling:halving_doubling",
    ),
    "double_binary_tree": (("all_reduce", "broadcast", "reduce"), "astrasim_py.builders.trees:double_binary"),
    "binomial_tree": (
        ("all_reduce", "broadcast", "reduce", "gather", "scatter", "barrier"),
        "astrasim_py.builders.trees:binomial",
    ),
    "bruck": (("all_gather", "all_to_all"), "astrasim_py.builders.bruck:build"),
    "pairwise": (("all_to_all", "reduce_scatter"), "astrasim_py.builders.direct:pairwise"),
    "dissemination": (("barrier",), "astrasim_py.builders.bruck:dissemination"),
    "hierarchical": (
        ("all_reduce", "all_gather", "reduce_scatter", "all_to_all", "broadcast", "reduce", "barrier"),
        "astrasim_py.builders.hierarchical:build",
    ),
    "linear": (("broadcast", "scatter", "gather", "reduce"), "astrasim_py.builders.direct:linear"),
}

#: Builders of algorithms in which switches take part.
IN_NETWORK: Mapping[str, tuple[tuple[str, ...], str]] = {
    "switch_tree": (("all_reduce", "reduce", "broadcast", "barrier"), "astrasim_py.builders.in_network:switch_tree"),
    "nvls": (("all_reduce", "reduce_scatter", "all_gather"), "astrasim_py.builders.in_network:nvls"),
}

BUILDERS = {**ALGORITHMS, **IN_NETWORK}


def in_network(builder: str, options: Mapping[str, Any]) -> bool:
    """Whether a builder lets switches work, in some dimension at least."""
    levels = options.get("algorithms") or () if builder == "hierarchical" else ()
    names = [level.get("builder") if isinstance(level, Mapping) else level for level in levels]
    return not {builder, *filter(lambda name: isinstance(name, str), names)}.isdisjoint(IN_NETWORK)
