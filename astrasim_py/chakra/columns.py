"""The columnar reader in numpy: many nodes at once, one field a round.

Decoding keeps one position per node and reads the next field of every unfinished node in one step of numpy, so that
the number of steps is the largest number of fields of a node and not the number of nodes. Attributes are read in the
same way. Whatever this way does not like goes, node by node, through the plain reader, which either knows better or
raises the error that the user sees.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from astrasim_py.chakra.plain import (
    ATTRIBUTE_MEMBERS,
    COUNTS,
    FIXED32,
    FIXED64,
    FIXED_WIDTH,
    LENGTH,
    MEMBER_WIRE,
    NODE_WIRE,
    STRING_MEMBER,
    VARINT,
    read_node,
)
from astrasim_py.chakra.schema import MISSING
from astrasim_py.chakra.storage import Csr, RawFile, compact

#: Bytes of files that are decoded together; bounds the temporary arrays.
BATCH_BYTES = 2**20
#: Zero bytes behind the buffer, so that eight bytes can be loaded anywhere.
_PAD = 32

_WRONG = 255
#: Tag -> field of an attribute: 1 name, 2 doc_string, 3..32 a member, 0 unknown, `_WRONG` wire type.
_ATTRIBUTE_TAGS = np.full(33 * 8 + 1, _WRONG, dtype=np.uint8)
_ATTRIBUTE_TAGS[33 * 8] = 0
for _number in range(1, 33):
    _ATTRIBUTE_TAGS[8 * _number + (LENGTH if _number < 3 else int(MEMBER_WIRE[_number]))] = _number
_ATTRIBUTE_TAGS.setflags(write=False)
#: First tag beyond the fields of a node.
_BEYOND = 88


@dataclass(frozen=True, slots=True, kw_only=True)
class FileColumns:
    """What one file decodes to; arrays as in `ExecutionTrace`, `ints` as `compact` stores them, without absent ones."""

    raw: RawFile
    version: str
    node_id: np.ndarray
    type: np.ndarray
    start_time_micros: np.ndarray
    duration_micros: np.ndarray
    name_start: np.ndarray
    name_length: np.ndarray
    ctrl_deps: Csr
    data_deps: Csr
    ints: dict[str, int | np.ndarray]
    texts: dict[str, tuple[np.ndarray, tuple[str, ...]]]


class Buffer:
    """Bytes of several files with eight-byte loads at any position."""

    def __init__(self, parts: Sequence[bytes]) -> None:
        sizes = [len(part) for part in parts]
        self.base = np.concatenate(([0], np.cumsum(sizes, dtype=np.int64)))
        total = int(self.base[-1])
        self.bytes = np.empty(total + _PAD, dtype=np.uint8)
        self.bytes[total:] = 0
        for part, at in zip(parts, self.base.tolist(), strict=False):
            self.bytes[at : at + len(part)] = np.frombuffer(part, dtype=np.uint8)
        self.words = np.ndarray((total + _PAD - 7,), dtype="<u8", buffer=self.bytes.data, strides=(1,))

    def varints(self, at: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Numbers at some positions: uint64 values and int64 sizes in bytes (0: longer than 10 bytes)."""
        word = self.words[at]
        value = word & np.uint64(127)
        size = np.ones(len(at), dtype=np.int64)
        more = np.flatnonzero(word & np.uint64(128))
        if len(more):
            value[more], size[more] = self._long(at[more], word[more])
        return value, size

    def _long(self, at: np.ndarray, word: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        stop = ~word & np.uint64(0x8080808080808080)
        lowest = stop & (~stop + np.uint64(1))
        # The lowest stop bit is 2^(8k - 1) for a number of k bytes; frexp gives 8k (0 where there is none).
        size = (np.frexp(lowest.astype(np.float64))[1] >> 3).astype(np.int64)
        x = word & ((lowest << np.uint64(1)) - np.uint64(1)) & np.uint64(0x7F7F7F7F7F7F7F7F)
        x = (x & np.uint64(0x007F007F007F007F)) | ((x & np.uint64(0x7F007F007F007F00)) >> np.uint64(1))
        x = (x & np.uint64(0x00003FFF00003FFF)) | ((x & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2))
        x = (x & np.uint64(0x000000000FFFFFFF)) | ((x & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4))
        longer = np.flatnonzero(size == 0)
        if len(longer):
            ninth = self.bytes[at[longer] + 8].astype(np.uint64)
            tenth = self.bytes[at[longer] + 9].astype(np.uint64)
            x[longer] |= (ninth & np.uint64(127)) << np.uint64(56)
            ten = ninth > 127
            x[longer] |= np.where(ten, (tenth & np.uint64(1)) << np.uint64(63), np.uint64(0))
            size[longer] = np.where(ten, np.where(tenth < 128, 10, 0), 9)
        return x, size

    def ends(self, at: np.ndarray, length: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """First and last (up to) eight bytes of some strings; of one below eight bytes the last are 0."""
        first = self.words[at]
        short = np.flatnonzero(length < 8)
        if len(short):
            bits = (length[short] * 8).astype(np.uint64)
            first[short] &= (np.uint64(1) << bits) - np.uint64(1)
        last = self.words[at + np.maximum(length - 8, 0)]
        last[short] = 0
        return first, last

    def not_ascii(self, at: np.ndarray, length: np.ndarray) -> np.ndarray:
        """Which of some strings hold a byte above 127 (indices, ascending)."""
        high = np.uint64(0x8080808080808080)
        long = np.flatnonzero(length > 256)
        found = [i for i in long.tolist() if int(self.bytes[at[i] : at[i] + length[i]].max()) > 127]
        rows = np.flatnonzero((length > 0) & (length <= 256))
        position, left = at[rows], length[rows]
        while len(rows):
            word = self.words[position]
            short = np.flatnonzero(left < 8)
            bits = (left[short] * 8).astype(np.uint64)
            word[short] &= (np.uint64(1) << bits) - np.uint64(1)
            found.extend(rows[(word & high) != 0].tolist())
            on = left > 8
            rows, position, left = rows[on], position[on] + 8, left[on] - 8
        return np.unique(np.array(found, dtype=np.int64))


class _Step(NamedTuple):
    """One field of each of several messages."""

    tag: np.ndarray  # int64: 8 x field number + wire type
    value: np.ndarray  # uint64: the number, or the length
    payload: np.ndarray  # int64: where fixed-width or length-delimited content starts
    after: np.ndarray  # int64: where the next field starts
    bad: np.ndarray  # bool: cut short, or nothing that the fast path reads


def _step(buffer: Buffer, at: np.ndarray, stop: np.ndarray) -> _Step:
    # One load holds the tag and the number behind it where both have one byte, as they mostly do.
    word = buffer.words[at]
    tag = (word & np.uint64(0xFF)).view(np.int64)
    value = (word >> np.uint64(8)) & np.uint64(0xFF)
    payload = at + 2
    bad = tag < 8
    hard = np.flatnonzero(word & np.uint64(0x8080))
    if len(hard):
        begin = at[hard]
        long_tag, tag_size = buffer.varints(begin)
        value[hard], value_size = buffer.varints(begin + tag_size)
        # Tags have 32 bits; a larger one becomes field 0, which does not exist.
        tag[hard] = np.where(long_tag < 2**32, long_tag, 0).view(np.int64)
        payload[hard] = begin + tag_size + value_size
        bad[hard] = (tag[hard] < 8) | (tag_size == 0) | (value_size == 0)
    wire = tag & 7
    # Beyond 2^31 a length is wrong anyhow, and cut down it cannot overflow a position.
    length = np.minimum(value, np.uint64(2**31)).view(np.int64)
    after = payload + length * (wire == LENGTH)
    rare = np.flatnonzero((wire != LENGTH) & (wire != VARINT))
    if len(rare):
        width = np.where(wire[rare] == FIXED64, 8, 4)
        payload[rare] = at[rare] + buffer.varints(at[rare])[1]
        after[rare] = payload[rare] + width
        bad[rare] = (tag[rare] < 8) | ((wire[rare] != FIXED64) & (wire[rare] != FIXED32))
    bad |= after > stop
    return _Step(tag, value, payload, after, bad)


def _go_on(active: int, rounds: int, patient: int) -> bool:
    # A round costs about as much as the plain reader needs for a few dozen fields.
    return active > 32 or (active > 0 and rounds < patient)


class _Nodes(NamedTuple):
    """Nodes as the first pass leaves them."""

    node_id: np.ndarray
    type: np.ndarray
    start: np.ndarray
    duration: np.ndarray
    name_start: np.ndarray
    name_length: np.ndarray
    deps: dict[int, list[tuple[np.ndarray, np.ndarray, np.ndarray]]]  # field -> (node, position, id)
    attributes: tuple[np.ndarray, np.ndarray, np.ndarray]  # node, start, end
    odd: np.ndarray  # bool: to be read plainly


def _scan_nodes(buffer: Buffer, start: np.ndarray, end: np.ndarray) -> _Nodes:
    size = len(start)
    scalars = {number: np.zeros(size, dtype=np.uint64) for number in (1, 3, 6, 7)}
    name_start, name_length = start.copy(), np.zeros(size, dtype=np.int64)
    odd = np.zeros(size, dtype=bool)
    deps: dict[int, list] = {4: [], 5: []}
    packed: dict[int, list] = {4: [], 5: []}
    attributes: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
    rows = np.flatnonzero(start < end)
    at, stop = start[rows], end[rows]
    rounds = 0
    while _go_on(len(rows), rounds, 32):
        rounds += 1
        step = _step(buffer, at, stop)
        if step.bad.any():
            odd[rows[step.bad]] = True
            good = ~step.bad
            rows, stop = rows[good], stop[good]
            step = _Step(*(column[good] for column in step))
        # Fields beyond the schema are skipped; they stay in the raw bytes.
        tags = np.minimum(step.tag, _BEYOND)
        for tag in np.flatnonzero(np.bincount(tags)).tolist():
            if tag == _BEYOND:
                continue
            field, wire = tag >> 3, tag & 7
            where = np.flatnonzero(tags == tag)
            if len(where) == len(rows):
                where = slice(None)
            if field in (4, 5) and wire == VARINT:
                deps[field].append((rows[where], step.payload[where], step.value[where]))
            elif wire != NODE_WIRE[field]:
                odd[rows[where]] = True
            elif field in scalars:
                scalars[field][rows[where]] = step.value[where]
            elif field == 2:
                name_start[rows[where]] = step.payload[where]
                name_length[rows[where]] = step.value[where].view(np.int64)
            elif field in (4, 5):
                packed[field].append((rows[where], step.payload[where], step.after[where]))
            elif field == 10:
                attributes.append((rows[where], step.payload[where], step.after[where]))
        going = step.after < stop
        rows, at, stop = rows[going], step.after[going], stop[going]
    odd[rows] = True
    for field, spans in packed.items():
        if spans:
            deps[field].append(_unpack(buffer, *(np.concatenate(c) for c in zip(*spans, strict=True)), odd))
    kind = scalars[3].astype(np.uint32).astype(np.int32)
    odd |= (kind < 0) | (kind > 7)
    _check_text(buffer, name_start, name_length, np.arange(size), odd)
    none = np.empty(0, dtype=np.int64)
    spans = tuple(np.concatenate(c) for c in zip(*attributes, strict=True)) or (none, none, none)
    return _Nodes(scalars[1], kind, scalars[6], scalars[7], name_start, name_length, deps, spans, odd)


def _unpack(
    buffer: Buffer, rows: np.ndarray, start: np.ndarray, end: np.ndarray, odd: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Numbers in packed lists: (node, position, value) each; lists that end within a number make a node odd."""
    length = end - start
    some = length > 0
    rows, start, length = rows[some], start[some], length[some]
    before = np.cumsum(length) - length
    position = np.repeat(start - before, length) + np.arange(int(length.sum()), dtype=np.int64)
    last = np.flatnonzero(buffer.bytes[position] < 128)
    ragged = buffer.bytes[start + length - 1] > 127
    if ragged.any():
        odd[rows[ragged]] = True
    first = np.concatenate(([0], last[:-1] + 1)) if len(last) else last
    at = position[first]
    value, size = buffer.varints(at)
    owner = np.repeat(rows, length)[first]
    # A number of more than 10 bytes, or one that runs on into the next list.
    wrong = (size == 0) | (size != last - first + 1)
    if wrong.any():
        odd[owner[wrong]] = True
    return owner, at, value


def _check_text(buffer: Buffer, start: np.ndarray, length: np.ndarray, owner: np.ndarray, odd: np.ndarray) -> None:
    for i in buffer.not_ascii(start, length).tolist():
        try:
            buffer.bytes[start[i] : start[i] + length[i]].tobytes().decode()
        except UnicodeDecodeError:
            odd[owner[i]] = True


class _Attributes(NamedTuple):
    """Attributes that have one of the wanted names."""

    node: np.ndarray
    name: np.ndarray  # index into the wanted names
    member: np.ndarray  # field number in the oneof; 0 if unset
    value: np.ndarray  # uint64: the number, or the length
    payload: np.ndarray


def _scan_attributes(
    buffer: Buffer, spans: tuple[np.ndarray, np.ndarray, np.ndarray], wanted: Sequence[str], odd: np.ndarray
) -> _Attributes:
    node, start, end = spans
    count = len(node)
    # A name of up to 127 bytes in front is what all producers write: one load tells.
    word = buffer.words[start]
    name_length = ((word >> np.uint64(8)) & np.uint64(0xFF)).view(np.int64)
    name_start = start + 2
    follows = name_start + name_length
    usual = ((word & np.uint64(0x80FF)) == 0x0A) & (follows <= end)
    if usual.all():
        at = follows
    else:
        name_length[~usual] = 0
        name_start = np.where(usual, name_start, start)
        at = np.where(usual, follows, start)
    member = np.zeros(count, dtype=np.uint8)
    value = np.zeros(count, dtype=np.uint64)
    payload = np.zeros(count, dtype=np.int64)
    rows = np.flatnonzero(at < end)
    at, stop = at[rows], end[rows]
    rounds = 0
    while _go_on(len(rows), rounds, 4):
        rounds += 1
        step = _step(buffer, at, stop)
        what = _ATTRIBUTE_TAGS[np.minimum(step.tag, len(_ATTRIBUTE_TAGS) - 1)]
        what[step.bad] = _WRONG
        name = np.flatnonzero(what == 1)
        name_start[rows[name]] = step.payload[name]
        name_length[rows[name]] = step.value[name].view(np.int64)
        content = np.flatnonzero((what >= 3) & (what <= 32))
        which = rows[content]
        member[which] = what[content]
        value[which] = step.value[content]
        payload[which] = step.payload[content]
        wrong = what == _WRONG
        going = step.after < stop
        if wrong.any():
            odd[node[rows[wrong]]] = True
            going &= ~wrong
        rows, at, stop = rows[going], step.after[going], stop[going]
    odd[node[rows]] = True
    index = _match(buffer, name_start, name_length, wanted)
    other = np.flatnonzero(index < 0)
    _check_text(buffer, name_start[other], name_length[other], node[other], odd)
    found = np.flatnonzero(index >= 0)
    return _Attributes(node[found], index[found], member[found], value[found], payload[found])


_MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F))


def _match(buffer: Buffer, start: np.ndarray, length: np.ndarray, wanted: Sequence[str]) -> np.ndarray:
    """Index of each name in `wanted`, -1 if it is not there."""
    texts = [name.encode() for name in wanted]
    known = Buffer([b"".join(texts)])
    known_length = np.array([len(text) for text in texts], dtype=np.int64)
    known_start = np.cumsum(known_length) - known_length
    first, last = known.ends(known_start, known_length)
    keys = first ^ last * _MIX[0] ^ known_length.astype(np.uint64) * _MIX[1]
    by_key = np.argsort(keys)
    here_first, here_last = buffer.ends(start, length)
    here_keys = here_first ^ here_last * _MIX[0] ^ length.astype(np.uint64) * _MIX[1]
    slot = np.minimum(np.searchsorted(keys[by_key], here_keys), len(texts) - 1)
    index = by_key[slot]
    # First and last eight bytes and the length pin a name of up to 16 bytes down; longer ones are compared.
    same = (here_first == first[index]) & (here_last == last[index]) & (length == known_length[index])
    index = np.where(same, index, -1)
    for i in np.flatnonzero(same & (length > 16)).tolist():
        if buffer.bytes[start[i] : start[i] + length[i]].tobytes() != texts[index[i]]:
            index[i] = -1
    return index


def _integers(buffer: Buffer, member: np.ndarray, value: np.ndarray, payload: np.ndarray):
    """What protobuf makes of integer members: int64 values, and which of them do not fit."""
    out = value.view(np.int64).copy()
    wrong = np.zeros(len(out), dtype=bool)
    low = np.uint64(2**32 - 1)
    for number in np.flatnonzero(np.bincount(member, minlength=33)).tolist():
        rows = np.flatnonzero(member == number)
        bits = value[rows]
        if number in FIXED_WIDTH:
            bits = buffer.words[payload[rows]]
        if number in (7, 23):
            out[rows] = (bits & low).astype(np.uint32).view(np.int32)
        elif number in (11, 19):
            out[rows] = (bits & low).view(np.int64)
        elif number in (15, 17):
            bits = bits & low if number == 15 else bits
            out[rows] = ((bits >> np.uint64(1)) ^ (~(bits & np.uint64(1)) + np.uint64(1))).view(np.int64)
        elif number == 27:
            out[rows] = bits != 0
        elif number in (9, 25):
            out[rows] = bits.view(np.int64)
        elif number in (13, 21):
            out[rows] = bits.view(np.int64)
            wrong[rows] = bits >= 2**63
        else:
            wrong[rows] = number != 0
    return out, wrong | ((out == MISSING) & (member != 0))


def decode_batch(
    batch: Sequence[tuple[RawFile, str, str]], ints: Sequence[str], texts: Sequence[str]
) -> list[FileColumns]:
    if not batch:
        return []
    buffer = Buffer([raw.data for raw, _, _ in batch])
    base = buffer.base[:-1].tolist()
    start = np.concatenate([raw.start + at for (raw, _, _), at in zip(batch, base, strict=True)])
    end = np.concatenate([raw.end + at for (raw, _, _), at in zip(batch, base, strict=True)])
    size = len(start)
    first = np.concatenate(([0], np.cumsum([len(raw.start) for raw, _, _ in batch])))
    nodes = _scan_nodes(buffer, start, end)
    odd = nodes.odd
    wanted = (*ints, *texts)
    found = _scan_attributes(buffer, nodes.attributes, wanted, odd)
    columns: dict[str, np.ndarray] = {}
    kind = nodes.type.astype(np.int8)
    # Fancy assignment keeps the last of several values for one row: the last attribute of a name counts.
    numeric = slice(None) if not texts else found.name < len(ints)
    integers, wrong = _integers(buffer, found.member[numeric], found.value[numeric], found.payload[numeric])
    which, owner, unset = found.name[numeric], found.node[numeric], found.member[numeric] == 0
    integers[unset] = MISSING
    counts = np.array([name in COUNTS for name in ints] + [False], dtype=bool)
    wrong |= counts[which] & (integers < 0) & ~unset
    odd[owner[wrong]] = True
    used = np.flatnonzero(np.bincount(which, minlength=len(ints)))
    table = np.full((len(used), size), MISSING, dtype=np.int64)
    table[np.searchsorted(used, which), owner] = integers
    columns |= {ints[i]: table[at] for at, i in enumerate(used.tolist())}
    labels: dict[str, tuple[np.ndarray, list[str]]] = {}
    for i, name in enumerate(texts, start=len(ints)):
        labels[name] = _labels(buffer, found, i, size, odd)
    deps = nodes.deps
    node_id, started, duration = nodes.node_id, nodes.start, nodes.duration
    if odd.any():
        for field, parts in deps.items():
            deps[field] = [tuple(c[~odd[part[0]]] for c in part) for part in parts]
        for row in np.flatnonzero(odd).tolist():
            file = int(np.searchsorted(first, row, side="right")) - 1
            raw, _, place = batch[file]
            plain, edges, values, text = read_node(
                raw.data, int(raw.start[row - first[file]]), int(raw.end[row - first[file]]), place, ints, texts
            )
            node_id[row], kind[row], started[row], duration[row] = plain.id, plain.type, plain.start, plain.duration
            nodes.name_start[row] = plain.name[0] + base[file]
            nodes.name_length[row] = plain.name[1] - plain.name[0]
            for field, ids in edges.items():
                if ids:
                    same = np.full(len(ids), row, dtype=np.int64)
                    deps[field].append((same, np.full(len(ids), start[row]), np.array(ids, dtype=np.uint64)))
            for name in ints:
                if name in values or name in columns:
                    if name not in columns:
                        columns[name] = np.full(size, MISSING, dtype=np.int64)
                    columns[name][row] = values.get(name, MISSING)
            for name in texts:
                codes, known = labels[name]
                codes[row] = -1
                if name in text:
                    if text[name] not in known:
                        known.append(text[name])
                    codes[row] = known.index(text[name])
    csr = {field: _csr(parts, size) for field, parts in deps.items()}
    out = []
    for (raw, version, _), low, high, at in zip(batch, first[:-1].tolist(), first[1:].tolist(), base, strict=True):
        out.append(
            FileColumns(
                raw=raw,
                version=version,
                node_id=node_id[low:high],
                type=kind[low:high],
                start_time_micros=started[low:high],
                duration_micros=duration[low:high],
                name_start=nodes.name_start[low:high] - at,
                name_length=nodes.name_length[low:high],
                ctrl_deps=_slice(csr[4], low, high),
                data_deps=_slice(csr[5], low, high),
                ints=_stored(columns, low, high),
                texts={name: _used(codes[low:high], known) for name, (codes, known) in labels.items()},
            )
        )
    return out


def _labels(buffer: Buffer, found: _Attributes, index: int, size: int, odd: np.ndarray) -> tuple[np.ndarray, list[str]]:
    """Text attributes as codes of the different texts."""
    codes = np.full(size, -1, dtype=np.int32)
    chosen = np.flatnonzero(found.name == index)
    member = found.member[chosen]
    odd[found.node[chosen[(member != 0) & (member != STRING_MEMBER)]]] = True
    unset = chosen[member == 0]
    chosen = chosen[member == STRING_MEMBER]
    at, length = found.payload[chosen], found.value[chosen].astype(np.int64)
    owner = found.node[chosen]
    texts: dict[bytes, int] = {}
    first, last = buffer.ends(at, length)
    short = np.flatnonzero(length <= 16)
    long = np.flatnonzero(length > 16)
    local = np.empty(len(chosen), dtype=np.int32)
    if len(short):
        keys = np.stack([first[short], last[short], length[short].astype(np.uint64)], axis=1)
        order = np.lexsort(keys.T)
        different = np.concatenate(([True], (keys[order[1:]] != keys[order[:-1]]).any(axis=1)))
        number = np.cumsum(different) - 1
        for i in order[different].tolist():
            row = short[i]
            texts.setdefault(buffer.bytes[at[row] : at[row] + length[row]].tobytes(), len(texts))
        local[short[order]] = number
    for row in long.tolist():
        text = buffer.bytes[at[row] : at[row] + length[row]].tobytes()
        local[row] = texts.setdefault(text, len(texts))
    decoded = []
    for code, text in enumerate(texts):
        try:
            decoded.append(text.decode())
        except UnicodeDecodeError:
            decoded.append("")
            odd[owner[local == code]] = True
    codes[owner] = local
    # An unset value after a set one of the same name: the last one counts, and the plain reader knows which.
    odd[found.node[unset]] |= codes[found.node[unset]] >= 0
    return codes, decoded


def _stored(columns: dict[str, np.ndarray], low: int, high: int) -> dict[str, int | np.ndarray]:
    stored = {name: compact(column[low:high], high - low) for name, column in columns.items()}
    return {name: column for name, column in stored.items() if isinstance(column, np.ndarray) or column != MISSING}


def _used(codes: np.ndarray, known: Sequence[str]) -> tuple[np.ndarray, tuple[str, ...]]:
    """Codes of one file and its texts, in the order in which it names them."""
    used, first, local = np.unique(codes, return_index=True, return_inverse=True)
    absent = int(len(used) > 0 and used[0] < 0)
    order = np.argsort(first[absent:])
    rank = np.full(len(used), -1, dtype=np.int32)
    rank[absent:][order] = np.arange(len(order))
    return rank[local], tuple(known[code] for code in used[absent:][order].tolist())


def _csr(parts: Sequence[tuple[np.ndarray, np.ndarray, np.ndarray]], size: int) -> Csr:
    ptr = np.zeros(size + 1, dtype=np.int64)
    if not parts:
        return Csr(ptr, np.empty(0, dtype=np.uint64))
    owner, at, ids = (np.concatenate(c) for c in zip(*parts, strict=True))
    if len(at) > 1 and not (at[1:] > at[:-1]).all():
        order = np.argsort(at, kind="stable")
        owner, ids = owner[order], ids[order]
    np.cumsum(np.bincount(owner, minlength=size), out=ptr[1:])
    return Csr(ptr, ids)


def _slice(csr: Csr, low: int, high: int) -> Csr:
    begin, end = int(csr.ptr[low]), int(csr.ptr[high])
    return Csr(csr.ptr[low : high + 1] - begin, csr.ids[begin:end])


def attribute_kinds(raw: RawFile, names: Sequence[str]) -> dict[tuple[str, str], int]:
    """How often each of some attributes uses each oneof member.

    Returns
    -------
    dict of (attribute name, member) to int
        In the order of `names`, then of field numbers; an unset value counts as member ``""``.
    """
    buffer = Buffer([raw.data])
    nodes = _scan_nodes(buffer, raw.start, raw.end)
    found = _scan_attributes(buffer, nodes.attributes, names, nodes.odd)
    counts = np.bincount(found.name * 33 + found.member, minlength=33 * len(names))
    return {
        (names[at // 33], ATTRIBUTE_MEMBERS.get(at % 33, "")): int(counts[at]) for at in np.flatnonzero(counts).tolist()
    }
