"""Reading MSCCL-IR XML: one hardened parser, and an error with its line for everything that cannot be meant.

The document is the first ``<algo>…</algo>`` of the file: producers print other lines, or a second document, around
it. Comments, processing instructions and CDATA are dropped before parsing, a DOCTYPE or an entity is refused wherever
it stands, so the parser sees elements and attributes only; it keeps no tree, opens nothing and is bounded in depth.

What can be written down as a `MscclProgram` is read, right or wrong; `astrasim_py.msccl.well_formed` judges it.
"""

import os
import re
from collections.abc import Iterator, Mapping
from contextlib import suppress
from typing import Any, NoReturn

from astrasim_py.collectives.chunks import PROTOCOL_SLOTS
from astrasim_py.core.errors import AlgorithmError
from astrasim_py.core.files import read_regular
from astrasim_py.msccl.ir import ALGO_ATTRIBUTES, STEP_TYPES, Gpu, MscclProgram, MscclStep, ThreadBlock

#: Largest file, bytes, and most elements in it.
MAX_FILE = 64 * 2**20
MAX_ELEMENTS = 2**19
#: Attributes per element, on average: runtimes read 16.
MAX_ATTRIBUTES = 32
#: Comments, processing instructions and the like.
MAX_MARKS = 2**16
#: Largest number of a chunk, channel, thread block, step …
MAX_NUMBER = 2**20
#: Characters of a value that is read.
MAX_TEXT = 4096
#: Most bytes of a size window.
MAX_BYTES = 2**63 - 1

#: Limits of the runtimes' parser: attributes of an element, characters of a value.
RUNTIME_ATTRIBUTES, RUNTIME_VALUE = 16, 255

_PLACES = {"algo": "the document", "gpu": "<algo>", "tb": "<gpu>", "step": "<tb>"}
_LEVELS = ("algo", "gpu", "tb", "step", "")
_MARKS = re.compile(rb"<!--|<\?|<!\[CDATA\[|<!(?i:DOCTYPE|ENTITY|ELEMENT|ATTLIST|NOTATION)\b|</?algo(?=[\s/>])")
_CLOSED_BY = {b"<!--": b"-->", b"<?": b"?>", b"<![CDATA[": b"]]>"}
_DECLARED = re.compile(rb"<\?xml\s[^>]*?encoding\s*=\s*[\"']([^\"'>]*)")
_UTF8 = (b"utf-8", b"utf8", b"us-ascii", b"ascii")
_NEWLINE = b"\n"
_START = re.compile(rb"<[^/!?]")
#: Bytes of the beginning that show how a producer sets out its attributes.
_SAMPLE = 2**16
#: Attributes that an element may lack.
_OPTIONAL = frozenset(("name", "outofplace", "minBytes", "maxBytes", "nthreads"))
_INTEGER = re.compile(r"-?[0-9]+")


def read_program(path: str | os.PathLike) -> MscclProgram:
    """Read an MSCCL-IR XML file.

    Raises AlgorithmError: with ``file:line``: not a readable regular file, too large, not XML, or not a program.
    """
    place = os.fspath(path)
    remedy = "write fewer, larger chunks"
    return parse_program(
        read_regular(path, MAX_FILE, AlgorithmError, what="an MSCCL-IR XML file", remedy=remedy), place
    )


def parse_program(data: bytes, place: str = "<text>") -> MscclProgram:
    """Read MSCCL-IR XML from memory.

    `data`: UTF-8, with or without a byte-order mark; only the first ``<algo>…</algo>`` counts. `place`: name of the
    file, for messages and `MscclProgram.source`. Raises AlgorithmError: with ``place:line``: not UTF-8, ill-formed XML,
    a DOCTYPE, missing or garbled attributes, an unknown step type, a rank that is missing or appears twice.
    """
    from lxml import etree  # takes 30 ms to load

    document, before = _document(data, place)
    target: Any = _ProgramParser(place, document, before)  # lxml's stubs want handlers of comments and text, too
    parser = etree.XMLParser(
        target=target, resolve_entities=False, load_dtd=False, no_network=True, huge_tree=False, encoding="utf-8"
    )
    try:
        etree.fromstring(document, parser)
    except etree.XMLSyntaxError as error:
        text = re.sub(r",? line \d+(?=\D|$)|, column \d+", "", error.msg or "")
        if "XML_PARSE_HUGE" in text:
            text = "elements too deep within each other, or a name or value too long"
        problem = f"is not well-formed XML: {_shown(text.strip(), 160)}"
        raise AlgorithmError(
            f"{place}:{before + (error.lineno or 1)}", problem, "write it again with its producer"
        ) from None
    return target.program()


def _document(data: bytes, place: str) -> tuple[bytes, int]:
    """The first ``<algo>…</algo>`` without comments and the like, but with all its lines; lines before it."""

    def refuse(at: int, problem: str, remedy: str) -> NoReturn:
        raise AlgorithmError(f"{place}:{data.count(_NEWLINE, 0, at) + 1}", problem, remedy)

    if data[:2] == b"\x1f\x8b":
        refuse(0, "is compressed", "unzip it")
    if data[:2] in (b"\xff\xfe", b"\xfe\xff") or b"\0" in data[:4]:
        refuse(0, "is in UTF-16 or UTF-32", "save it as UTF-8")
    if not data.isascii():
        try:
            data.decode()
        except UnicodeDecodeError as error:
            refuse(error.start, f"byte 0x{data[error.start]:02x} is not UTF-8", "save it as UTF-8")

    if data.count(b"<") - data.count(b"</") > MAX_ELEMENTS + MAX_MARKS:
        refuse(0, f"more than {MAX_ELEMENTS} elements", "write fewer, larger chunks")

    begin = end = -1
    parts: list[bytes] = []
    position = since = marks = 0
    while mark := _MARKS.search(data, position):
        position = mark.end()
        marks += 1
        if marks > MAX_MARKS:
            refuse(mark.start(), f"more than {MAX_MARKS} comments and the like", "write elements only")
        text = mark.group()
        if text in _CLOSED_BY:
            closing = data.find(_CLOSED_BY[text], position)
            if closing < 0:
                if end >= 0:
                    break
                refuse(mark.start(), f"{text.decode()} is not closed", f"close it with {_CLOSED_BY[text].decode()}")
            position = closing + len(_CLOSED_BY[text])
            declared = _DECLARED.match(data, mark.start(), position)
            if declared and declared.group(1).lower() not in _UTF8:
                encoding = _shown(declared.group(1).decode())
                refuse(
                    mark.start(), f'is declared to be in "{encoding}"', "save it as UTF-8 and declare that, or nothing"
                )
            if begin >= 0 and end < 0:
                parts += [data[since : mark.start()], _NEWLINE * data.count(_NEWLINE, mark.start(), position)]
                since = position
        elif text == b"<algo":
            if begin < 0:
                begin = since = mark.start()
            elif end < 0:
                refuse(mark.start(), "<algo> within <algo>", "close the first with </algo>")
        elif text == b"</algo":
            if begin >= 0 and end < 0:
                end = data.find(b">", position) + 1 or len(data)
                parts.append(data[since:end])
        else:
            refuse(mark.start(), f"{text.decode()} is not read: MSCCL-IR has no document type", "delete it")
    if begin < 0:
        refuse(0, "has no <algo>: it is not MSCCL-IR XML", "name a file that msccl-tools or a like tool wrote")
    if end < 0:
        refuse(begin, "<algo> is not closed", "write the whole file again: it ends with </algo>")

    document = b"".join(parts)
    if document.count(b"=") > MAX_ATTRIBUTES * (document.count(b"<") + 8):
        refuse(begin, f"more than {MAX_ATTRIBUTES} attributes per element", "write those of MSCCL-IR only")
    return document, data.count(_NEWLINE, 0, begin)


def _lines(document: bytes, before: int) -> Iterator[int]:
    """Line of every start tag, in order: in the result of `_document`, "<" begins start and end tags only."""
    line, offset = before + 1, 0
    count = document.count
    for start in _START.finditer(document):
        position = start.start()
        line += count(_NEWLINE, offset, position)
        offset = position
        yield line


class _Text(dict):
    """Texts by themselves; one that is too long raises KeyError."""

    def __missing__(self, text: str) -> str:
        if len(text) > MAX_TEXT:
            raise KeyError(text)
        return text


class _Ints(dict):
    """Integers by their text, from `least` to `most`; other texts raise KeyError."""

    def __init__(self, least: int, most: int = MAX_NUMBER) -> None:
        super().__init__()
        self.least, self.most = least, most

    def __missing__(self, text: str) -> int:
        if not _is_integer(text) or not self.least <= int(text) <= self.most:
            raise KeyError(text)
        value = int(text)
        if len(self) < 2**16:
            self[text] = value
        return value


def _is_integer(text: str) -> bool:
    # Far beyond any bound, int() of a long text takes quadratic time.
    return len(text) <= 20 and bool(_INTEGER.fullmatch(text))


def _attributes() -> dict[str, dict[str, dict]]:
    """Values by text of every attribute, by element; faults are looked for in this order."""
    text, plain, signed, count, size = _Text(), _Ints(0), _Ints(-1), _Ints(1), _Ints(0, MAX_BYTES)
    flag, buffer = {"0": 0, "1": 1}, {"i": "i", "o": "o", "s": "s"}
    protocol, kind = ({name: name for name in names} for names in (PROTOCOL_SLOTS, STEP_TYPES))
    return {
        "algo": {
            "proto": protocol, "ngpus": count, "name": text, "nchannels": plain, "nchunksperloop": count, "coll": text,
            "inplace": flag, "outofplace": flag, "minBytes": size, "maxBytes": size, "nthreads": plain,
        },
        "gpu": {"id": plain, "i_chunks": plain, "o_chunks": plain, "s_chunks": plain},
        "tb": {"id": plain, "send": signed, "recv": signed, "chan": signed},
        "step": {
            "s": plain, "type": kind, "srcbuf": buffer, "srcoff": signed, "dstbuf": buffer, "dstoff": signed,
            "cnt": plain, "depid": signed, "deps": signed, "hasdep": flag,
        },
    }  # fmt: skip


class _ProgramParser:
    """Makes a `MscclProgram` of the parser's events."""

    def __init__(self, place: str, document: bytes, before: int) -> None:
        self.place = place
        self.lines = _lines(document, before)
        #: Attributes, line and what is inside of every element that is open; `_LEVELS` says which they are.
        self.open: list[tuple[Mapping, int, list]] = []
        self.gpus: dict[int, Gpu] = {}
        self.ignored = 0  # depth within an element that is not known
        self.known = _attributes()
        self.layout = _layout(document[:_SAMPLE])
        self.wide = self.long = 0

    def start(self, tag: str, attributes: Mapping[str, str]) -> None:
        line = next(self.lines)
        if self.ignored:
            self.ignored += 1
        elif tag != _LEVELS[len(self.open)]:
            self._other(tag, line)
            self.ignored = 1
        else:
            self.open.append((self._values(tag, attributes, line) if tag == "step" else attributes, line, []))
            if len(attributes) > RUNTIME_ATTRIBUTES:
                self.wide = self.wide or line

    def end(self, tag: str) -> None:
        if self.ignored:
            self.ignored -= 1
        elif tag != "algo":
            a, line, inside = self.open.pop()
            if tag == "step":
                self.open[-1][2].append(MscclStep(**a, line=line))
            elif tag == "tb":
                self.open[-1][2].append(ThreadBlock(**self._values(tag, a, line), steps=tuple(inside), line=line))
            else:
                gpu = Gpu(**self._values(tag, a, line), tbs=tuple(inside), line=line)
                if gpu.id in self.gpus:
                    problem = f'gpu id="{gpu.id}" appears twice, first in line {self.gpus[gpu.id].line}'
                    self._refuse(line, problem, "write each rank once")
                self.gpus[gpu.id] = gpu

    def close(self) -> None:
        """The parser calls this also after an error, which must not be hidden by another."""

    def program(self) -> MscclProgram:
        """The program, once the whole document is read."""
        (a, line, _), gpus = self.open[0], tuple(self.gpus.values())
        # libxml2 hands an ampersand on as a reference where it resolves no entities.
        a = {name: value.replace("&#38;", "&") for name, value in a.items()}
        if any(len(value) > RUNTIME_VALUE for value in a.values()):
            self.long = line
        values = self._values("algo", a, line)
        values["name"] = " ".join(values.get("name", "").split())
        fields = zip(MscclProgram._fields, ALGO_ATTRIBUTES, strict=False)
        stated: dict[str, Any] = {field: values.get(name) for field, name in fields}
        program = MscclProgram(**stated, gpus=gpus, source=self.place, line=line)
        ngpus = program.ngpus
        for gpu in gpus:
            if gpu.id >= ngpus:
                self._refuse(gpu.line, f'gpu id="{gpu.id}" is not one of {ngpus} ranks', f"number them 0..{ngpus - 1}")
        if len(gpus) < ngpus:
            missing = next(rank for rank in range(ngpus) if rank not in self.gpus)
            problem = f'has {len(gpus)} of ngpus="{ngpus}" ranks: <gpu id="{missing}"> is missing'
            self._refuse(line, problem, "write a <gpu> for every rank")
        notes = list(self.layout)
        if self.wide:
            notes.append(f"an element of more than {RUNTIME_ATTRIBUTES} attributes (line {self.wide})")
        if self.long:
            notes.append(f"a value of more than {RUNTIME_VALUE} characters (line {self.long})")
        return program._replace(layout=tuple(notes))

    def _values(self, tag: str, a: Mapping[str, str], line: int) -> dict[str, Any]:
        """Attributes of an element that are there, or must be."""
        try:
            return {
                name: table[a[name]] for name, table in self.known[tag].items() if name in a or name not in _OPTIONAL
            }
        except KeyError:
            self._explain(tag, a, line)

    # -- what is wrong

    def _refuse(self, line: int, problem: str, remedy: str) -> NoReturn:
        raise AlgorithmError(f"{self.place}:{line}", problem, remedy)

    def _other(self, tag: str, line: int) -> None:
        """An element that is not the one that belongs here: unknown ones are ignored, as runtimes do."""
        if tag == "op":
            problem = "<op> belongs to the new format of msccl-tools, which no runtime reads"
            self._refuse(line, problem, "write the program with <step>: ir_to_xml(…, old_format=True)")
        if tag in _PLACES:
            self._refuse(line, f"<{tag}> is at a wrong place", f"write it within {_PLACES[tag]}")
        if not self.open:
            self._refuse(line, f"<{_shown(tag)}> is not MSCCL-IR", "write <algo …> without a namespace")

    def _explain(self, tag: str, a: Mapping[str, str], line: int) -> NoReturn:
        """Refuse an element for the first attribute that is missing or garbled."""
        if tag == "step" and a.get("type") == "ra":
            problem = 'type "ra" is parsed by one runtime and executed by none'
            self._refuse(line, problem, "write re (local reduction) or rrc (receive and reduce)")
        for name, words in self.known[tag].items():
            if name not in a:
                if name in _OPTIONAL:
                    continue
                self._refuse(line, f"<{tag}> has no {name}", f'write {name}="…"')
            text = a[name]
            if len(text) > MAX_TEXT:
                problem = f"{name} of <{tag}> has {len(text)} characters, more than {MAX_TEXT}"
                self._refuse(line, problem, "write a shorter one")
            with suppress(KeyError):
                words[text]
                continue
            if isinstance(words, _Ints):
                fault = f"not a whole number from {words.least} to {words.most}"
                remedy = "write one" if _is_integer(text) else "write digits only"
            else:
                near = [word for word in words if word.lower() == text.strip().lower()]
                fault, remedy = f"none of {', '.join(words)}", f'write {name}="{(near or list(words))[0]}"'
            self._refuse(line, f'<{tag}> has {name}="{_shown(text)}", which is {fault}', remedy)
        raise AssertionError("every attribute is right")


def _layout(document: bytes) -> tuple[str, ...]:
    """Layout that the runtimes' simple parser cannot read: it knows ``name="value"`` after one blank only."""
    if any(text in document for text in (b"='", b"= ", b" =")):
        return ('attributes that are not written name="value"',)
    if any(text in document for text in (b'"  ', b'"\t', b'"\n', b'"\r', b"step  ", b"tb  ", b"gpu  ", b"algo  ")):
        return ("attributes that are not set apart by one blank",)
    return ()


def _shown(text: str, most: int = 40) -> str:
    """A value for messages, in one line of bounded length."""
    cut = text[:most]
    return (cut if cut.isprintable() else ascii(cut)[1:-1]) + ("…" if len(text) > most else "")
