"""The compiled reader: it parses files that hold nothing unusual straight into columns.

`read` parses a file twice. *Counting* checks everything and counts nodes, dependencies and group names, and, for
each integer column, the nodes that have it and the range of their values. *Filling* parses the same bytes again and
writes into arrays of exactly that size. The reader gives up a file that is damaged, or that holds what the format
allows but no usual producer writes: `decode` reads such a file by protobuf, and words the error.
"""

from __future__ import annotations

import numpy as np

from astrasim_py.core.jit import kernel, lean

#: Columns of `Tally.found`, the first four also of `Tally.first`.
NODES, CTRL, DATA, TEXTS, METADATA_START, METADATA_END = range(6)
#: Modes of `read`.
RECORDS, COUNT, FILL = range(3)
#: Columns of `usual`: bytes of an attribute before its number, its column, and the oneof member of the number.
SPAN, COLUMN, MEMBER = range(3)
#: Most different texts of one file, and most probes of the table of texts for one.
MAX_TEXTS, _MAX_TRIES = 1024, 64
#: Cells of the tables of texts and of names.
TEXT_CELLS, NAME_CELLS = 4096, 256

_ABSENT = -(2**63)
#: A position beyond every end.
_FAILED = 2**62
_LOW7, _BIT7 = np.uint64(127), np.uint64(128)
_LOW32 = np.uint64(2**32 - 1)
_HIGH, _ALL = np.uint64(0x8080808080808080), np.uint64(2**64 - 1)
_FIRST_TAG, _LAST_TAG = np.uint64(8), np.uint64(2**32)
_LAST_TYPE = np.uint64(7)
MIX = (np.uint64(0x9E3779B97F4A7C15), np.uint64(0xC2B2AE3D27D4EB4F), np.uint64(0x165667B19E3779F9))


@lean
def _varint(data, at, stop):
    """A number and the position behind it; -1 if it is cut short or longer than 10 bytes."""
    value = np.uint64(0)
    shift = np.uint64(0)
    limit = min(stop, at + 10)
    while at < limit:
        byte = np.uint64(data[at])
        at += 1
        value |= (byte & _LOW7) << shift
        if byte < _BIT7:
            return value, at
        shift += np.uint64(7)
    return value, -1


@lean
def _edges(words, start, length):
    """First and last eight bytes of a text; a text below eight bytes has zeros for the last."""
    first = words[start]
    if length < 8:
        return first & ((np.uint64(1) << np.uint64(8 * length)) - np.uint64(1)), np.uint64(0)
    return first, words[start + length - 8]


@lean
def _mix(first, last, length):
    """A hash of a text by its edges and length."""
    key = (first ^ (last * MIX[0]) ^ (np.uint64(length) * MIX[1])) * MIX[2]
    return np.int64(key >> np.uint64(32))


@lean
def _ascii(words, start, length):
    at = start
    end = start + length
    while at + 8 <= end:
        if words[at] & _HIGH:
            return False
        at += 8
    if at < end:
        return words[at] & _HIGH & ((np.uint64(1) << np.uint64(8 * (end - at))) - np.uint64(1)) == 0
    return True


@lean
def _same(data, one, other, two, length):
    for i in range(length):  # noqa: SIM110 (numba knows no all())
        if data[one + i] != other[two + i]:
            return False
    return True


@lean
def _packed(data, at, stop, out, filled, fill):
    """Read or count the numbers of a packed list; returns the new length of `out`, -1 if the list is damaged."""
    while at < stop:
        value = np.uint64(data[at])
        if value < _BIT7:
            at += 1
        else:
            value, at = _varint(data, at, stop)
            if at < 0:
                return -1
        if fill:
            out[filled] = value
        filled += 1
    return filled


@lean
def _integer(member, bits):
    """Value of an integer member as protobuf decodes it, and whether int64 holds it."""
    low = bits & _LOW32
    if member == 9 or member == 25:  # int64, sfixed64
        return np.int64(bits), True
    if member == 7 or member == 23:  # int32, sfixed32
        return np.int64(np.int32(np.uint32(low))), True
    if member == 13 or member == 21:  # uint64, fixed64
        return np.int64(bits), bits < np.uint64(2**63)
    if member == 11 or member == 19:  # uint32, fixed32
        return np.int64(low), True
    if member == 27:  # bool
        return np.int64(bits != np.uint64(0)), True
    if member == 15 or member == 17:  # sint32, sint64
        zigzag = low if member == 15 else bits
        half = np.int64(zigzag >> np.uint64(1))
        return (half ^ -np.int64(zigzag & np.uint64(1))), True
    return np.int64(0), False


@lean
def _frame(data, begin, end, most, largest, found, start, stop, fill):
    """Find the records of a file, and write the bounds of its nodes if `fill`; False to give the file up."""
    at = begin
    count = -1
    while at < end:
        length, after = _varint(data, at, end)
        if after < 0 or after - at > 5:
            return False
        size = np.int64(length)
        # An empty node is possible, but there is hardly more than one.
        if size > largest or size > end - after or (size == 0 and count >= 0):
            return False
        if count < 0:
            found[METADATA_START] = after - begin
            found[METADATA_END] = after + size - begin
        elif fill:
            start[count] = after - begin
            stop[count] = after + size - begin
        count += 1
        if count > most:
            return False
        at = after + size
    found[NODES] = count
    return count >= 0


@lean
def _column_of(cells, starts, lengths, names, name_words, data, start, length, first, last):
    """Index of the column of a name, -1 if there is none."""
    cell = _mix(first, last, length) % NAME_CELLS
    while cells[cell] >= 0:
        column = cells[cell]
        known = starts[column]
        if lengths[column] == length:
            other_first, other_last = _edges(name_words, known, length)
            # Two words hold a whole text of up to 16 bytes.
            same = other_first == first and other_last == last
            if same and (length <= 16 or _same(data, start, names, known, length)):
                return column
        cell = (cell + 1) % NAME_CELLS
    return -1


@lean
def _head(data, at, end):
    """Tag, value or length, and position behind both; tag 0 to give the file up.

    A field of fixed width has the value 0, and the position of its content.
    """
    tag = np.uint64(data[at])
    if tag < _BIT7:
        at += 1
    else:
        tag, at = _varint(data, at, min(end, at + 5))
        if at < 0:
            return 0, np.uint64(0), _FAILED
    if tag >= _LAST_TAG or tag < _FIRST_TAG:
        return 0, np.uint64(0), _FAILED
    wire = np.int64(tag) & 7
    value = np.uint64(0)
    if wire == 1 or wire == 5:
        if at + (8 if wire == 1 else 4) > end:
            return 0, value, _FAILED
        return np.int64(tag), value, at
    if (wire != 0 and wire != 2) or at >= end:
        return 0, value, _FAILED
    value = np.uint64(data[at])
    if value < _BIT7:
        at += 1
    else:
        value, at = _varint(data, at, end)
        if at < 0:
            return 0, value, _FAILED
    if wire == 2 and value > np.uint64(end - at):
        return 0, value, _FAILED
    return np.int64(tag), value, at


@lean
def _learn(words, begin, label, length, end, member, column, heads, usual):
    """Remember the bytes of an attribute before its number, if it is a short name and a number and nothing else.

    Producers write the attributes of a node in one order: three words tell whether the expected one comes next.
    """
    span = length + 3
    at = begin + span
    if label != begin + 2 or span > 24 or member < 7 or member > 15 or member & 1 == 0 or end - at < 1 or end - at > 8:
        return
    if words[at - 1] & np.uint64(0xFF) != np.uint64(8 * member):
        return
    for i in range(3):
        width = min(max(span - 8 * i, 0), 8)
        heads[3 + i] = _ALL >> np.uint64(64 - 8 * width) if width else np.uint64(0)
        heads[i] = words[begin + 8 * i]
    usual[SPAN], usual[COLUMN], usual[MEMBER] = span, column, member


@lean
def _squeezed(x):
    """Seven bits of each byte, side by side."""
    x &= np.uint64(0x7F7F7F7F7F7F7F7F)
    x = (x & np.uint64(0x007F007F007F007F)) | ((x & np.uint64(0x7F007F007F007F00)) >> np.uint64(1))
    x = (x & np.uint64(0x00003FFF00003FFF)) | ((x & np.uint64(0x3FFF00003FFF0000)) >> np.uint64(2))
    return (x & np.uint64(0x000000000FFFFFFF)) | ((x & np.uint64(0x0FFFFFFF00000000)) >> np.uint64(4))


@lean
def _text_code(data, words, at, length, cells, codes, known, ascii_needed):
    """Number of a text among those of its file, `known` for a new one, -1 to give the file up."""
    first, last = _edges(words, at, length)
    cell = _mix(first, last, length) % TEXT_CELLS
    tries = 0
    while codes[cell] >= 0:
        # A hostile file may hold texts that collide.
        tries += 1
        if tries > _MAX_TRIES:
            return -1
        if cells[2 * cell + 1] == length and _same(data, cells[2 * cell], data, at, length):
            return codes[cell]
        cell = (cell + 1) % TEXT_CELLS
    if known >= MAX_TEXTS or (ascii_needed and not _ascii(words, at, length)):
        return -1
    cells[2 * cell], cells[2 * cell + 1] = at, length
    codes[cell] = known
    return known


@lean
def _attribute(data, words, member_wire, begin, end):
    """Soundness of an attribute, position and length of its name, and member, value and position of its content."""
    at = label = begin
    length, member, content, payload = np.int64(0), np.int64(0), np.uint64(0), np.int64(0)
    while at < end:
        tag, value, at = _head(data, at, end)
        field, wire = tag >> 3, tag & 7
        here = at
        if wire == 2:
            at += np.int64(value)
        elif wire != 0:
            value = words[at]
            at += 8 if wire == 1 else 4
        if field > 32:
            continue
        if wire != (2 if field < 3 else np.int64(member_wire[field])):
            at = _FAILED
        elif field == 1:
            label, length = here, np.int64(value)
        elif field > 2:
            member, content, payload = field, value, here
    return at == end, label, length, member, content, payload


@lean
def _scan(fill, f, source, wanted, tally, out, scratch):
    """Parse the nodes of file `f`; False to give it up."""
    data, words = source.data, source.words
    seen, heads, usual = scratch.seen, scratch.heads, scratch.usual
    text_cells, text_codes = scratch.text_cells, scratch.text_codes
    name_cells, name_starts, name_lengths = wanted.cells, wanted.start, wanted.length
    name_data, name_words, counts, member_wire = wanted.data, wanted.words, wanted.counts, wanted.member_wire
    starts, stops, widths, columns = tally.start, tally.stop, tally.width[f], tally.column[f]
    ints32, ints64, data_deps, ctrl_deps = out.ints32, out.ints64, out.data_deps, out.ctrl_deps
    node_id, kinds, begun, lasts, codes = out.node_id, out.type, out.begun, out.lasts, out.codes
    name_start, name_length = out.name_start, out.name_length
    data_ptr, ctrl_ptr, text_start, text_length = out.data_ptr, out.ctrl_ptr, out.text_start, out.text_length
    base = source.base[f]
    low = tally.first[f, NODES]
    n_ctrl, n_data, n_texts = tally.first[f, CTRL], tally.first[f, DATA], tally.first[f, TEXTS]
    no_ctrl, no_data, no_texts = n_ctrl, n_data, n_texts
    ptr = low + f
    held = tally.held[f]
    seen[:] = -1
    text_codes[:] = -1
    if fill:
        ctrl_ptr[ptr] = data_ptr[ptr] = 0
    for row in range(low, tally.first[f + 1, NODES]):
        at, end = base + starts[row], base + stops[row]
        own_id = own_kind = own_begun = own_lasts = np.uint64(0)
        own_name, own_length = at, np.int64(0)
        code = np.int64(-1)
        after = np.int64(-1)
        while at < end:
            column = np.int64(-1)
            label_length = np.int64(0)
            member, content, payload = np.int64(0), np.uint64(0), np.int64(0)
            simple = False
            guess = after if after >= 0 else len(held) + 1 + np.int64(own_kind & _LAST_TYPE)
            length = np.int64(data[at + 1])
            size = length - usual[guess, SPAN]
            tag = np.int64(0)
            if data[at] == 82 and 0 < size <= 8 and length < 128 and length <= end - at - 2:
                here = at + 2
                differs = (words[here] ^ heads[guess, 0]) & heads[guess, 3]
                differs |= (words[here + 8] ^ heads[guess, 1]) & heads[guess, 4]
                differs |= (words[here + 16] ^ heads[guess, 2]) & heads[guess, 5]
                number_bits = words[here + usual[guess, SPAN]]
                unused = np.uint64(64 - 8 * size)
                high = _HIGH >> unused
                if differs == 0 and number_bits & high == high >> np.uint64(8):
                    tag, simple = 82, True
                    at += 2 + length
                    column, member = usual[guess, COLUMN], usual[guess, MEMBER]
                    content = _squeezed(number_bits & (_ALL >> unused))
            if not simple:
                tag, value, at = _head(data, at, end)
            if tag == 82:  # attr
                if not simple:
                    begin = at
                    at += np.int64(value)
                    sound, label, label_length, member, content, payload = _attribute(
                        data, words, member_wire, begin, at
                    )
                    if not sound:
                        at = _FAILED
                        continue
                    first, last = _edges(words, label, label_length)
                    column = _column_of(
                        name_cells, name_starts, name_lengths, name_data, name_words,
                        data, label, label_length, first, last,
                    )  # fmt: skip
                    if column < 0:
                        if not fill and not _ascii(words, label, label_length):
                            at = _FAILED
                        continue
                    _learn(words, begin, label, label_length, at, member, column, heads[guess], usual[guess])
                after = column
                # The last of several attributes of one name counts, and an unset one hides those before it.
                if seen[column] == row or (column == len(held) and member != 0 and member != 29):
                    at = _FAILED
                    continue
                seen[column] = row
                if member == 0:
                    continue
                if column == len(held):
                    code = _text_code(
                        data, words, payload, np.int64(content), text_cells, text_codes, n_texts - no_texts, not fill
                    )
                    if code < 0:
                        at = _FAILED
                    elif code == n_texts - no_texts:
                        if fill:
                            text_start[n_texts], text_length[n_texts] = payload, np.int64(content)
                        n_texts += 1
                    continue
                number, fits = _integer(member, content)
                if not fill:
                    if not fits or number == _ABSENT or (number < 0 and counts[column]):
                        at = _FAILED
                    held[column, 0] += 1
                    held[column, 1] = min(held[column, 1], number)
                    held[column, 2] = max(held[column, 2], number)
                elif widths[column] == 32:
                    ints32[columns[column] + row - low] = number
                elif widths[column] == 64:
                    ints64[columns[column] + row - low] = number
            elif tag == 42:  # data_deps
                n_data = _packed(data, at, at + np.int64(value), data_deps, n_data, fill)
                at = at + np.int64(value) if n_data >= 0 else _FAILED
            elif tag == 34:  # ctrl_deps
                n_ctrl = _packed(data, at, at + np.int64(value), ctrl_deps, n_ctrl, fill)
                at = at + np.int64(value) if n_ctrl >= 0 else _FAILED
            elif tag == 18:  # name
                own_name, own_length = at, np.int64(value)
                at += own_length
            elif tag == 8:
                own_id = value
            elif tag == 24:
                own_kind = value & _LOW32
            elif tag == 48:
                own_begun = value
            elif tag == 56:
                own_lasts = value
            elif tag == 66 or tag == 74:  # inputs, outputs
                at += np.int64(value)
            elif tag < 88:  # an unusual wire type, for example dependencies that are not packed
                at = _FAILED
            elif tag & 7 == 2:
                at += np.int64(value)
            elif tag & 7:
                at += 8 if tag & 7 == 1 else 4
        if at != end or own_kind > _LAST_TYPE or not _ascii(words, own_name, own_length):
            return False
        if not fill:
            continue
        node_id[row] = own_id
        kinds[row] = own_kind
        begun[row] = own_begun
        lasts[row] = own_lasts
        name_start[row] = own_name - base
        name_length[row] = own_length
        codes[row] = code
        ptr += 1
        ctrl_ptr[ptr] = n_ctrl - no_ctrl
        data_ptr[ptr] = n_data - no_data
    if not fill:
        tally.found[f, CTRL] = n_ctrl - no_ctrl
        tally.found[f, DATA] = n_data - no_data
        tally.found[f, TEXTS] = n_texts - no_texts
    return True


@kernel("the reader of large traces", lean=True)
def read(mode, most, largest, source, wanted, tally, out, scratch):
    """Count the records of some files (mode RECORDS), or count (COUNT) or read (FILL) their content.

    It leaves out files whose `tally.good` is False, and sets that of files that it gives up.
    """
    usual = scratch.usual
    for row in range(len(usual)):
        usual[row, SPAN] = 2**31
    for f in range(len(tally.good)):
        if not tally.good[f]:
            continue
        good = True
        if mode != FILL:
            low, high = tally.first[f, NODES], tally.first[f + 1, NODES]
            good = _frame(
                source.data,
                source.base[f],
                source.base[f + 1],
                most,
                largest,
                tally.found[f],
                tally.start[low:high],
                tally.stop[low:high],
                mode == COUNT,
            )
        if mode != RECORDS and good:
            good = _scan(mode == FILL, f, source, wanted, tally, out, scratch)
        tally.good[f] = good
