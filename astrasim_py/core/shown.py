"""How objects show themselves: one line in a console, a small table in a notebook."""

from collections.abc import Mapping
from html import escape


class Shown:
    """Base of classes with a short text and an HTML table, both made of `_facts`."""

    __slots__ = ()

    def _facts(self) -> tuple[str, Mapping[str, str | int]]:
        """A name, and label → fact: a count, or text that needs no label."""
        raise NotImplementedError

    def __repr__(self) -> str:
        name, facts = self._facts()
        facts_text = [_counted(fact, label) if isinstance(fact, int) else fact for label, fact in facts.items()]
        return f"{type(self).__name__}({name}: {', '.join(filter(None, facts_text))})"

    def _repr_html_(self) -> str:
        name, facts = self._facts()
        rows = "".join(
            f"<tr><th style='text-align:left'>{escape(label)}</th><td style='text-align:left'>{escape(text)}</td></tr>"
            for label, fact in facts.items()
            if fact and (text := f"{fact:,}" if isinstance(fact, int) else fact)
        )
        return f"<table><caption>{type(self).__name__} <b>{escape(name)}</b></caption>{rows}</table>"


def _counted(count: int, noun: str) -> str:
    """``3 ranks``, ``1 switch``; nothing for none of it."""
    if count == 1:
        noun = noun[:-2] if noun.endswith("hes") else noun.removesuffix("s")
    return f"{count:,} {noun}" if count else ""
