"""JSON of any size, one element of its long list at a time."""

import json
import re
from codecs import getincrementaldecoder
from collections.abc import Callable, Generator, Iterator

from astrasim_py.core.errors import TraceError
from astrasim_py.pytorch.sources import CHUNK, open_source

#: Largest single value (an event, or a key of the header), characters.
MAX_VALUE = 2**23
#: An error of the decoder this close to the end of the window may be due to what was not read yet.
_TAIL = 64
_SPACE = re.compile(r"[ \t\r\n]*")
_DECODER = json.JSONDecoder(strict=False, parse_float=str, parse_constant=str)


def unheard(share: float) -> None:
    """Ignore lines of progress."""


def chunks(source: str, tell: Callable[[float], None] = unheard) -> Generator[str, None, None]:
    """The text of a document in pieces of about `CHUNK` characters; errors as `open_source`.

    `tell`: takes the share of the file that has been read, again and again.
    """
    decode = getincrementaldecoder("utf-8-sig")(errors="replace").decode
    with open_source(source) as (file, share):
        while data := file.read(CHUNK):
            tell(share())
            yield decode(data)


class _Window:
    """The part of a text that is being decoded."""

    def __init__(self, source: str, tell: Callable[[float], None]) -> None:
        self.source, self.chunks = source, chunks(source, tell)
        self.text, self.at, self.before = "", 0, 0  # `before`: characters that have gone

    def more(self) -> bool:
        """Read on, at least as much again as is held; False at the end of the text."""
        held = len(self.text) - self.at
        if held > MAX_VALUE:
            self.fail(f"a value of more than {MAX_VALUE} characters", "it is no recording of PyTorch")
        parts, length = [self.text[self.at :]], 0
        while length <= held and (part := next(self.chunks, "")):
            parts.append(part)
            length += len(part)
        self.before += self.at
        self.text, self.at = "".join(parts), 0
        return length > 0

    def fail(self, problem: str, remedy: str = "") -> None:
        raise TraceError(f"{self.source}: character {self.before + self.at}", problem, remedy)

    def peek(self) -> str:
        """The next character that is no space; empty at the end."""
        while True:
            if space := _SPACE.match(self.text, self.at):
                self.at = space.end()
            if self.at < len(self.text):
                return self.text[self.at]
            if not self.more():
                return ""

    def take(self, expected: str) -> str:
        """Go past the next character, which must be one of `expected`."""
        character = self.peek()
        if not character:
            problem = "is empty" if expected == "{[" else "is cut short"
            raise TraceError(self.source, problem, "record or copy it again")
        if character not in expected:
            self.fail(f'is not JSON: "{character}" in place of {" or ".join(expected)}')
        self.at += 1
        return character

    def value(self) -> object:
        """The next value, whole."""
        while True:
            self.peek()
            try:
                value, end = _DECODER.raw_decode(self.text, self.at)
                length = end - self.at
                if end < len(self.text) or not self.more():  # a number may go on in the next chunk
                    self.at += length
                    return value
            except json.JSONDecodeError as error:
                partial = error.pos > len(self.text) - _TAIL or error.msg.startswith("Unterminated")
                if not partial:
                    self.fail(f"is not JSON: {error.msg}")
                if not self.more():
                    raise TraceError(self.source, "is cut short", "record or copy it again") from None
            except RecursionError:
                self.fail("is nested too deeply", "it is no recording of PyTorch")
            except ValueError as error:
                self.fail(f"has a malformed number: {error}")


def elements(source: str, list_key: str, tell: Callable[[float], None] = unheard) -> Iterator[tuple[str, object]]:
    """The content of a JSON object, or of a bare list, in order of the text.

    `source`: ``path``, or ``path!member`` of a tar archive. `list_key`: the key whose list is too long to be held.
    `tell`: as of `chunks`. Yields (`list_key`, element) for each of its elements, and of a bare list, and (key, value)
    for all other keys. Numbers with a decimal point, and NaN, come as text; integers as int.

    Raises TraceError: not readable, not JSON, cut short, nested too deeply, a value of more than `MAX_VALUE`
    characters, an object without that key.
    """
    window, has_list = _Window(source, tell), False
    try:
        if window.take("{[") == "[":
            has_list = True
            yield from ((list_key, value) for value in _list(window))
        else:
            mark = "," if window.peek() != "}" else window.take("}")
            while mark == ",":
                key = window.value()
                window.take(":")
                if key == list_key:
                    has_list = True
                    window.take("[")
                    yield from ((list_key, value) for value in _list(window))
                else:
                    yield str(key), window.value()
                mark = window.take(",}")
        if window.peek():
            window.fail("has text after its end")
        if not has_list:
            raise TraceError(source, f'has no "{list_key}"', "name another file")
    finally:
        window.chunks.close()


def _list(window: _Window) -> Iterator[object]:
    """The elements of a list whose bracket has been read."""
    mark = "," if window.peek() != "]" else window.take("]")
    while mark == ",":
        yield window.value()
        mark = window.take(",]")
