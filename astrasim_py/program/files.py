"""Files of algorithms: one ``.et`` per rank, or one ``.npz`` of their columns, the fast form for very large ones."""

import io
import json
import os
import zipfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import prod
from typing import Unpack

import numpy as np

from astrasim_py.chakra.et_io import read_prefix
from astrasim_py.chakra.schema import INT_COLUMNS, MISSING, Attribute
from astrasim_py.chakra.storage import Csr
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.collectives.collective import COLLECTIVES, CUSTOM
from astrasim_py.collectives.contract import Contract
from astrasim_py.core.errors import AlgorithmError, OutputError
from astrasim_py.core.files import open_regular, write_file
from astrasim_py.program.algorithm import Algorithm
from astrasim_py.program.interchange import STATED, Promises, algorithm_from_traces, check_well_formed, promised
from astrasim_py.program.rotation import MAX_NODES, PEERS, VARYING, Rotated, Rotation, peers
from astrasim_py.program.table import named
from astrasim_py.program.traces import Traces

#: Largest `.npz` that is read, bytes after unpacking; and its texts (metadata, contract) alone.
MAX_NPZ_BYTES = 4 * 2**30
MAX_TEXTS = 64 * 2**20

#: Version 1 had no texts, 2 no rotations, and 3 no switches.
_VERSIONS = (1, 2, 3, 4)
_MOST_MEMBERS = 4 * len(INT_COLUMNS)
_KINDS: dict[str, type] = {"int64_val": int, "uint64_val": int, "int32_val": int, "uint32_val": int}
_KINDS |= {"string_val": str, "bool_val": bool, "double_val": float, "float_val": float}

_ARRAYS = ("node_id", "type", "duration_micros", "data_ptr", "data_ids", "ctrl_ptr", "ctrl_ids")
#: Columns besides peers in which the ranks of a rotation differ, and the ranks that are laid at once.
_ROTATING = ("msg_chunk_idx", "msg_chunk_cnt", "src_off", "dst_off")
_BLOCK = 64
#: Most ranks of a rotation in a file.
_MAX_RANKS = 2**20
#: Numbers of collectives in a file.
_NAMES = tuple(COLLECTIVES)
_SCALARS = ("version", "name", "collective", "ranks", "root", "chunks", "in_place", "made_for")


def _narrow(array: np.ndarray) -> np.ndarray:
    """The same integers in the smallest dtype that holds them."""
    # Negative numbers only: those of other dtypes would have no sign.
    least = min(int(array.min(initial=-1)), ~int(array.max(initial=0)))
    return array.astype(np.min_scalar_type(least))


@dataclass(frozen=True)
class _Columns:
    """Columns of the ranks of a rotation as a file states them. A column of `chunks` is c·r + i on rank 0 and c·(r
    rotated by the rank) + i on others: by name, c. A column of `numbers` is written out for all ranks, [ranks, n],
    negative where absent."""

    rotation: Rotation
    base: ExecutionTrace
    chunks: Mapping[str, int]
    numbers: Mapping[str, np.ndarray]

    def __call__(self, ranks: np.ndarray, names: Sequence[str]) -> dict[str, np.ndarray]:
        out = peers(self.rotation, self.base, ranks, names)
        for name in names:
            if name in self.numbers:
                column = self.numbers[name][ranks].astype(np.int64)
                out[name] = np.where(column < 0, MISSING, column)
            elif name in self.chunks:
                period, column = self.chunks[name], self.base.column(name)[None, :]
                turned = self.rotation.shift(np.maximum(column, 0) // period, ranks[:, None]) * period + column % period
                out[name] = np.where(column < 0, column, turned)
        return out


def _stated(rotated: Rotated | None, chunks: int) -> _Columns | None:
    """The differences between ranks, as a file states them; None if it cannot, or there is no rotation."""
    if rotated is None:
        return None
    rotation, base, ranks = rotated.rotation, rotated.base, rotated.rotation.ranks
    if rotated.nodes > MAX_NODES or ranks > _MAX_RANKS:
        return None
    blocks = [np.arange(start, min(start + _BLOCK, ranks)) for start in range(0, ranks, _BLOCK)]
    per_rank = chunks // ranks if chunks % ranks == 0 else 0
    by_rule = _Columns(rotation, base, dict.fromkeys(_ROTATING, per_rank) if per_rank else {}, {})
    # Columns that are the same on all ranks, and columns that follow the rule.
    same, ruled = dict.fromkeys(_ROTATING, True), dict.fromkeys(_ROTATING, bool(per_rank))
    for block in blocks:
        columns, rule = rotated.columns(block), by_rule(block, VARYING)
        if any(not np.array_equal(columns[name], rule[name]) for name in PEERS):
            return None
        for name in _ROTATING:
            same[name] = same[name] and bool((columns[name] == base.column(name)).all())
            ruled[name] = ruled[name] and np.array_equal(columns[name], rule[name])
    listed = [name for name in _ROTATING if not same[name] and not ruled[name]]
    numbers = {name: np.empty((ranks, len(base)), dtype=np.int32) for name in listed}
    for block in blocks if listed else ():
        for name, column in rotated.columns(block, listed).items():
            present = column != MISSING
            if int(column.max(initial=0)) >= 2**31 or int(column.min(where=present, initial=0)) < 0:
                return None
            numbers[name][block] = np.where(present, column, -1)
    return _Columns(rotation, base, {name: per_rank for name in _ROTATING if ruled[name] and not same[name]}, numbers)


def write_npz(path: str | os.PathLike, algorithm: Algorithm) -> None:
    """Write an algorithm as one ``.npz`` file, whole or not at all. Raises OutputError."""
    write_file(path, encode_npz(algorithm, os.fspath(path)))


def encode_npz(algorithm: Algorithm, place: str) -> bytes:
    """Bytes of a ``.npz`` file of the columns of an algorithm. Names of nodes are dropped, and metadata that is neither
    number nor text. Identical traces are stored once, and of an algorithm of a rotation one trace and what the others
    differ in. Raises OutputError, at `place`: too much metadata."""
    index: dict[ExecutionTrace, int] = {}
    turned = _stated(algorithm.traces.rotated, algorithm.chunks)
    traces = tuple(algorithm.traces) if turned is None else (turned.base,) * algorithm.ranks
    for trace in traces:
        index.setdefault(trace, len(index))
    distinct = list(index)
    lengths = np.array([len(trace) for trace in distinct], dtype=np.int64)
    texts = {
        "protocol": algorithm.protocol,
        "contract": None if algorithm.contract is None else algorithm.contract.to_text(),
        "actors": list(algorithm.actors),
        "metadata": [[[a.name, a.kind, a.value] for a in t.metadata if kept_metadata(a)] for t in distinct],
    }
    text = json.dumps(texts, separators=(",", ":")).encode()
    if len(text) > MAX_TEXTS:
        problem = f"its metadata and contract take {len(text)} bytes, more than {MAX_TEXTS}"
        raise OutputError(place, problem, "write .et files")
    arrays: dict[str, np.ndarray | np.int64] = {
        "version": np.int64(_VERSIONS[-1]),
        "name": np.frombuffer(algorithm.name.encode(), dtype=np.uint8),
        "collective": np.int64(-1 if algorithm.collective == CUSTOM else _NAMES.index(algorithm.collective)),
        "ranks": np.int64(algorithm.ranks),
        "root": np.int64(-1 if algorithm.root is None else algorithm.root),
        "chunks": np.int64(algorithm.chunks),
        "in_place": np.int64(algorithm.in_place),
        "made_for": np.int64(-1 if algorithm.made_for is None else algorithm.made_for),
        "trace_of": np.array([index[trace] for trace in traces], dtype=np.int64),
        "lengths": lengths,
        "texts": np.frombuffer(text, dtype=np.uint8),
    }
    if turned is not None:
        arrays["rotation"] = np.array(turned.rotation.dims, dtype=np.int64)
        arrays["turned"] = np.array([turned.chunks.get(name, 0) for name in _ROTATING], dtype=np.int64)
        arrays |= {f"all_{name}": numbers.ravel() for name, numbers in turned.numbers.items()}
    for name in ("node_id", "type", "duration_micros"):
        arrays[name] = np.concatenate([getattr(t, name) for t in distinct])
    for kind in ("data", "ctrl"):
        deps = [getattr(t, f"{kind}_deps") for t in distinct]
        # Counts per node, not offsets: they are small and repeat.
        arrays[f"{kind}_ptr"] = np.concatenate([np.diff(d.ptr) for d in deps])
        arrays[f"{kind}_ids"] = np.concatenate([d.ids for d in deps])
    for name in INT_COLUMNS:
        if any(t.has_column(name) for t in distinct):
            column = np.concatenate([t.column(name) for t in distinct])
            present = column != MISSING
            if not present.all():
                arrays[f"has_{name}"] = np.packbits(present)
            arrays[f"col_{name}"] = column[present]
    arrays = {
        key: _narrow(value) if isinstance(value, np.ndarray) and value.dtype in (np.int32, np.int64) else value
        for key, value in arrays.items()
    }
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)  # type: ignore[arg-type]  # numpy's own flag is none of the names
    return packed.getvalue()


def kept_metadata(attribute: Attribute) -> bool:
    """True if an attribute of the metadata is kept in an ``.npz``."""
    value, kind = attribute.value, attribute.kind
    fits = type(value) is not int or -(2**31) <= value < 2**31 or (kind.endswith("64_val") and abs(value) < 2**63)
    return type(value) is _KINDS.get(kind) and fits and attribute.name not in STATED


def _parsed_texts(
    text: bytes, traces: int, place: str
) -> tuple[str, Contract | None, tuple[str, ...], list[list[Attribute]]]:
    if not text:
        return "", None, (), [[] for _ in range(traces)]
    if len(text) > MAX_TEXTS:
        raise ValueError(f"texts of {len(text)} bytes")
    try:
        document = json.loads(text)
        metadata = [[Attribute(*attribute) for attribute in attributes_of] for attributes_of in document["metadata"]]
        protocol, contract, actors = document["protocol"], document["contract"], document.get("actors", [])
    except (ValueError, KeyError, TypeError, RecursionError):
        raise ValueError("its texts are no JSON of metadata") from None
    attributes = [attribute for attributes_of in metadata for attribute in attributes_of]
    named = all(type(text) is str for a in attributes for text in (a.name, a.kind, a.doc))
    if len(metadata) != traces or not named or not all(map(kept_metadata, attributes)):
        raise ValueError("its metadata do not fit its traces")
    if type(protocol) is not str or not isinstance(contract, str | None):
        raise ValueError("its protocol or contract is no text")
    if not isinstance(actors, list) or not all(type(name) is str for name in actors):
        raise ValueError("its switches have no names")
    return protocol, None if contract is None else Contract.from_text(contract, place), tuple(actors), metadata


def _load_npz(place: str) -> dict[str, np.ndarray]:
    expected = {*_ARRAYS, *_SCALARS, "trace_of", "lengths", "texts"}
    expected |= {f"{part}_{name}" for name in INT_COLUMNS for part in ("col", "has")}
    expected |= {"rotation", "turned", *(f"all_{name}" for name in _ROTATING)}
    try:
        with open_regular(place, AlgorithmError, what="an .npz file") as file:
            with zipfile.ZipFile(file) as archive:
                members = archive.infolist()
                for member in members:
                    if member.filename.removesuffix(".npy") not in expected:
                        raise AlgorithmError(place, f"has a member {member.filename[:64]!r}", "write it with convert")
                if sum(member.file_size for member in members) > MAX_NPZ_BYTES or len(members) > _MOST_MEMBERS:
                    raise AlgorithmError(place, f"unpacks to more than {MAX_NPZ_BYTES} bytes", "cut the algorithm")
            file.seek(0)
            with np.load(file, allow_pickle=False, max_header_size=4096) as arrays:
                return {name: arrays[name] for name in arrays.files}
    except AlgorithmError:
        raise
    except (ValueError, KeyError, EOFError, zipfile.BadZipFile, NotImplementedError, MemoryError) as error:
        text = " ".join(str(error).split())[:120]
        raise AlgorithmError(place, f"is not an .npz of an algorithm: {text}", "write it with convert") from None
    except Exception as error:  # zlib.error and other errors of the unpacker on damaged bytes
        raise AlgorithmError(place, f"is damaged: {type(error).__name__}", "write it with convert") from None


def read_npz(path: str | os.PathLike) -> Algorithm:
    """Read an algorithm that `write_npz` wrote. Nothing in the file is executed, and its size is bounded."""
    place = os.fspath(path)
    arrays = _load_npz(place)
    try:
        scalars = _scalars(arrays)
        text = arrays.get("texts", np.empty(0)).astype(np.uint8).tobytes()
        lengths, trace_of = arrays["lengths"].astype(np.int64), arrays["trace_of"].astype(np.int64)
        ranks, total = scalars["ranks"], int(lengths.sum())
        if ranks < 1 or (lengths < 0).any() or total > MAX_NODES:
            raise ValueError("its traces do not fit its ranks")
        if not len(lengths) or int(trace_of.min()) < 0 or int(trace_of.max()) >= len(lengths):
            raise ValueError("a rank has no trace")
        protocol, contract, actors, metadata = _parsed_texts(text, len(lengths), place)
        if len(trace_of) != ranks + len(actors):
            raise ValueError("its traces do not fit its ranks")
        first_rank = [int(np.argmax(trace_of == number)) for number in range(len(lengths))]
        places = [f"{place}: {named(rank, ranks, actors)}" for rank in first_rank]
        traces = _traces(arrays, np.concatenate(([0], np.cumsum(lengths))), metadata, places)
        if "rotation" in arrays:
            by_rank = _rotated(arrays, traces, ranks, place)
        else:
            by_rank = Traces.of((traces[number] for number in trace_of.tolist()), searched=True)
            check_well_formed(by_rank, place, ranks, actors)
    except ValueError as error:
        raise AlgorithmError(place, f"is not an .npz of an algorithm: {error}", "write it with convert") from None
    return Algorithm(
        name=bytes(arrays["name"].astype(np.uint8)).decode("utf-8", "replace")[:256] or "algorithm",
        collective=CUSTOM if scalars["collective"] < 0 else _NAMES[scalars["collective"]], ranks=ranks,
        traces=by_rank, root=None if scalars["root"] < 0 else scalars["root"], chunks=max(scalars["chunks"], 0),
        in_place=bool(scalars["in_place"]), made_for=None if scalars["made_for"] < 0 else scalars["made_for"],
        source=place, contract=contract, protocol=protocol, actors=actors,
    )  # fmt: skip


def _scalars(arrays: Mapping[str, np.ndarray]) -> dict[str, int]:
    """The single numbers of a file whose arrays all have the right shape; raises ValueError otherwise."""
    missing = [key for key in (*_SCALARS, *_ARRAYS, "trace_of", "lengths") if key not in arrays]
    if missing:
        raise ValueError(f"{missing[0]} is missing")
    for key, array in arrays.items():
        if array.dtype.kind not in "iu" or array.ndim != (0 if key in _SCALARS and key != "name" else 1):
            raise ValueError(f"{key} is {array.dtype} of {array.ndim} dimensions")
    scalars = {key: int(arrays[key]) for key in _SCALARS if key != "name"}
    if scalars["version"] not in _VERSIONS:
        raise ValueError(f"version {scalars['version']} is not {' or '.join(map(str, _VERSIONS))}")
    if not -1 <= scalars["collective"] < len(_NAMES):
        raise ValueError(f"collective {scalars['collective']} is unknown")
    return scalars


def _traces(
    arrays: Mapping[str, np.ndarray], bounds: np.ndarray, metadata: list[list[Attribute]], places: list[str]
) -> list[ExecutionTrace]:
    total = int(bounds[-1])
    for key in ("node_id", "type", "duration_micros", "data_ptr", "ctrl_ptr"):
        if len(arrays[key]) != total:
            raise ValueError(f"{key} has {len(arrays[key])} entries for {total} nodes")
    deps = {}
    for kind in ("data", "ctrl"):
        counts = arrays[f"{kind}_ptr"].astype(np.int64)
        if (counts < 0).any() or int(counts.sum()) != len(arrays[f"{kind}_ids"]):
            raise ValueError(f"{kind}_ptr does not fit {kind}_ids")
        deps[f"{kind}_deps"] = np.concatenate(([0], np.cumsum(counts))), arrays[f"{kind}_ids"].astype(np.uint64)
    columns = {}
    for name in INT_COLUMNS:
        if f"col_{name}" not in arrays:
            continue
        values, mask = arrays[f"col_{name}"].astype(np.int64), np.ones(total, dtype=bool)
        if f"has_{name}" in arrays:
            mask = np.unpackbits(arrays[f"has_{name}"].astype(np.uint8))[:total].astype(bool)
        if len(mask) != total or int(mask.sum()) != len(values):
            raise ValueError(f"{name} has {len(values)} entries")
        columns[name] = np.full(total, MISSING, dtype=np.int64)
        columns[name][mask] = values
    traces = []
    shared: dict[bytes, Csr] = {}
    for number, (begin, end) in enumerate(pairwise(bounds.tolist())):
        parts = {}
        for kind, (ptr, ids) in deps.items():
            ptr_of = ptr[begin : end + 1]
            csr = Csr(ptr_of - ptr_of[0], ids[ptr_of[0] : ptr_of[-1]])
            parts[kind] = shared.setdefault(csr.ptr.tobytes() + csr.ids.tobytes(), csr)
        traces.append(
            ExecutionTrace.from_columns(
                node_id=arrays["node_id"][begin:end].astype(np.uint64),
                type=arrays["type"][begin:end],
                duration_micros=arrays["duration_micros"][begin:end].astype(np.uint64),
                metadata=metadata[number],
                place=places[number],
                **parts,
                **{name: column[begin:end] for name, column in columns.items()},
            )
        )
    return traces


def _rotated(arrays: Mapping[str, np.ndarray], traces: Sequence[ExecutionTrace], ranks: int, place: str) -> Traces:
    dims, turned = arrays["rotation"].tolist(), arrays.get("turned", np.empty(0)).tolist()
    if len(traces) != 1 or len(dims) > 32 or min(dims, default=0) < 1 or prod(dims) != ranks or ranks > _MAX_RANKS:
        raise ValueError("its rotation does not fit its ranks")
    base = traces[0]
    if ranks * len(base) > MAX_NODES or len(turned) != len(_ROTATING) or not all(0 <= unit < 2**31 for unit in turned):
        raise ValueError("its rotation does not fit its trace")
    numbers = {name: arrays[f"all_{name}"] for name in _ROTATING if f"all_{name}" in arrays}
    if any(column.size != ranks * len(base) for column in numbers.values()):
        raise ValueError("a column of its rotation does not fit its ranks")
    chunks = {name: unit for name, unit in zip(_ROTATING, turned, strict=True) if unit}
    if any(int(base.column(name).max(initial=0)) // unit >= ranks for name, unit in chunks.items()):
        raise ValueError("a chunk of its rotation belongs to no rank")
    rotation = Rotation(tuple(dims))
    numbers = {name: column.reshape(ranks, len(base)) for name, column in numbers.items()}
    rotated = Rotated(rotation, base, _Columns(rotation, base, chunks, numbers))
    # Peers of the others are valid where those of rank 0 are; chunks and offsets must be checked.
    check_well_formed([base], place, ranks)
    total = base.column("total_chunk_cnt")
    symbolic = (base.column("msg_chunk_idx") >= 0) & (base.column("msg_chunk_cnt") >= 0)
    if chunks or numbers:
        for start in range(0, ranks, _BLOCK):
            columns = rotated.columns(np.arange(start, min(start + _BLOCK, ranks)), ("msg_chunk_idx", "msg_chunk_cnt"))
            end = columns["msg_chunk_idx"] + columns["msg_chunk_cnt"]
            stated = (columns["msg_chunk_idx"] >= 0) & (columns["msg_chunk_cnt"] >= 0)
            if (stated != symbolic).any() or (stated & (total > 0) & (end > total)).any():
                raise ValueError("its rotation turns chunks beyond the last")
    return Traces.of_rotation(rotated)


def read_algorithm(
    prefix: str | os.PathLike[str], collective: str | None = None, **stated: Unpack[Promises]
) -> Algorithm:
    """Read an algorithm: ``PREFIX.<rank>.et`` for every rank (gzip'd or not), or one ``.npz`` file."""
    source = os.fspath(prefix)
    if source.endswith(".npz"):
        return promised(read_npz(source), collective, **stated)
    return algorithm_from_traces(read_prefix(source), collective, source=source, **stated)
