"""Reading of execution plans: every field, and one line with its place for what cannot be meant.

Executors ignore keys that they do not know, and so does the reader, which says so; `Plan.document` keeps them.
"""

import json
import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import NoReturn, TypeVar

from astrasim_py.core.errors import AlgorithmError
from astrasim_py.core.files import read_regular
from astrasim_py.mscclpp.ir import (
    BUFFERS,
    CHANNEL_TYPES,
    MEMORY,
    PORT,
    PROTOCOLS,
    SWITCH,
    Gpu,
    Grouped,
    Local,
    Operation,
    Plan,
    Reference,
    Remote,
    RemoteBuffer,
    SwitchChannel,
    ThreadBlock,
)
from astrasim_py.mscclpp.json_places import Path, parsed, path_text, position_of, text_of
from astrasim_py.mscclpp.operands import operand_fault
from astrasim_py.mscclpp.operations import KINDS, SEMAPHORES, SYNCHRONIZING, Kind

#: Largest file, bytes, and most operations, ranks and chunks of a buffer.
MAX_FILE = 256 * 2**20
MAX_OPERATIONS, MAX_RANKS, MAX_NUMBER = 2**20, 2**14, 2**24
#: Most items of all lists.
MAX_ITEMS = 2**23
_BYTES = 2**64 - 1
#: Keys that are read, by the object that has them.
_KEYS = {
    "plan": "name collective protocol inplace reuse_resources gpus num_threads_per_block use_double_scratch_buffer "
    "buffer_alignment min_message_size max_message_size",
    "gpu": "id input_chunks output_chunks scratch_chunks threadblocks channels remote_buffers semaphores",
    "block": "id ops channels remote_buffer_refs",
    "channel": "channel_type connected_to buffer_type buff rank_groups",
    "group": "size ranks",
    "of block": "channel_type channel_ids access_channel_type remote_buffer_ids buff",
    "buffer": "rank type access_channel_types",
    "semaphore": "init_value",
    "operation": "name src_buff dst_buff channel_ids channel_type reduce_op semaphore_ids barrier_id num_threadblocks "
    "tbg_info iter_context ops",
    "reference": "type index size buffer_id switch_channel_id rank",
    "tbg_info": "tb_id tbg_size",
    "iter_context": "unit_size num_chunks",
}  # fmt: skip
_KNOWN = {what: frozenset(names.split()) for what, names in _KEYS.items()}
_T = TypeVar("_T")


def read_plan(path: str | os.PathLike[str]) -> Plan:
    """Read an execution plan.

    Raises AlgorithmError: ``file:line:column: path in the plan``: not a readable file, no JSON, a key that is missing
    or of another type, an operation that executors do not know, a number of something that is not there.
    """
    remedy = "write fewer operations"
    data = read_regular(path, MAX_FILE, AlgorithmError, what="an MSCCL++ execution plan", remedy=remedy)
    return parse_plan(data, os.fspath(path))


def parse_plan(data: bytes, place: str = "<text>") -> Plan:
    """Read an execution plan from memory; as `read_plan`."""
    text = text_of(data, place)
    return _Reader(parsed(text, place), place, text).plan()


def plan_of(document: Mapping[str, object], place: str = "plan") -> Plan:
    """The plan of a JSON object; as `read_plan`."""
    return _Reader(document, place, "").plan()


class _Reader:
    """Reads one document. A path names a value: keys and numbers from the top."""

    def __init__(self, document: object, place: str, text: str) -> None:
        self.document, self.source, self.text = document, place, text
        self.unread: dict[str, Path] = {}
        self.operations = self.items = 0
        self.warnings: list[str] = []

    def refuse(self, path: Path, problem: str, remedy: str) -> NoReturn:
        where = position_of(self.text, path)
        place = self.source if where is None else f"{self.source}:{where[0]}:{where[1]}"
        name = path_text(path)
        raise AlgorithmError(f"{place}: {name}" if name else place, problem, remedy)

    # -- values

    def mapping(self, value: object, path: Path, what: str) -> dict:
        if not isinstance(value, dict):
            self.refuse(path, f"is {_shown(value)}, not an object", f"write {{…}} with {_KEYS[what].split()[0]}")
        for key in value:
            if key not in _KNOWN[what]:
                self.unread.setdefault(f"{what} {key}", (*path, key))
        return value

    def of(
        self, value: dict, key: str, path: Path, read: Callable[[object, Path], _T], default: _T | None = None
    ) -> _T:
        """The value of a key, or the default; without one the key is required."""
        if key not in value:
            if default is None:
                self.refuse(path, f'lacks "{key}"', f'write "{key}"')
            return default
        return read(value[key], (*path, key))

    def whole(self, most: int, least: int = 0) -> Callable[[object, Path], int]:
        def read(value: object, path: Path) -> int:
            if type(value) is not int or not least <= value <= most:
                self.refuse(path, f"is {_shown(value)}", f"write a whole number from {least} to {most}")
            return value

        return read

    def flag(self, value: object, path: Path) -> bool:
        if not isinstance(value, bool):
            self.refuse(path, f"is {_shown(value)}", "write true or false")
        return value

    def word(self, *known: str) -> Callable[[object, Path], str]:
        def read(value: object, path: Path) -> str:
            if value not in known or not isinstance(value, str):
                self.refuse(path, f"is {_shown(value)}", f"write one of {', '.join(known)}")
            return value

        return read

    def name(self, value: object, path: Path) -> str:
        if value is None:  # programs without a name
            return ""
        return self.text_of(value, path)

    def text_of(self, value: object, path: Path) -> str:
        if not isinstance(value, str) or len(value) > 4096 or not value.isprintable():
            self.refuse(path, f"is {_shown(value)}", "write a short text")
        return value

    def every(self, value: dict, key: str, path: Path, read: Callable[[object, Path], _T]) -> tuple[_T, ...]:
        """The items of the list of a key that may be absent."""
        return self.listed(read)(value[key], (*path, key)) if key in value else ()

    def listed(self, read: Callable[[object, Path], _T]) -> Callable[[object, Path], tuple[_T, ...]]:
        def every(value: object, path: Path) -> tuple[_T, ...]:
            if not isinstance(value, list):
                self.refuse(path, f"is {_shown(value)}, not a list", "write […]")
            self.items += len(value)
            if self.items > MAX_ITEMS:
                self.refuse(path, f"is one of the lists of more than {MAX_ITEMS} items in all", "write fewer")
            return tuple(read(item, (*path, number)) for number, item in enumerate(value))

        return every

    # -- the plan

    def plan(self) -> Plan:
        top = self.mapping(self.document, (), "plan")
        self.ranks = len(top["gpus"]) if isinstance(top.get("gpus"), list) else 0
        if self.ranks > MAX_RANKS:
            self.refuse(("gpus",), f"has {self.ranks} ranks", f"write at most {MAX_RANKS}")
        size = self.whole(_BYTES)
        plan = Plan(
            name=self.of(top, "name", (), self.name),
            collective=self.of(top, "collective", (), self.name),
            protocol=self.of(top, "protocol", (), self.word(*PROTOCOLS)),
            in_place=self.of(top, "inplace", (), self.flag),
            gpus=self.of(top, "gpus", (), self.listed(self.gpu)),
            reuses=self.of(top, "reuse_resources", (), self.flag, False),
            double_scratch=self.of(top, "use_double_scratch_buffer", (), self.flag, False),
            alignment=self.of(top, "buffer_alignment", (), self.whole(2**30, 1), 16),
            threads=self.of(top, "num_threads_per_block", (), self.whole(1024, 1), 1024),
            least=self.of(top, "min_message_size", (), size, 0),
            most=self.of(top, "max_message_size", (), size, _BYTES),
            source=self.source,
            document=top,
            text=self.text,
        )
        if not plan.gpus:
            self.refuse(("gpus",), "is empty", "write one object for every rank")
        if plan.least > plan.most:
            self.refuse(("max_message_size",), f"is {plan.most}, less than min_message_size", "write a larger size")
        unread = [path_text(path) for path in self.unread.values()]
        if unread:
            more = f" and {len(unread) - 20} more" if len(unread) > 20 else ""
            self.warnings.append(f"{self.source}: keys that executors ignore: {', '.join(unread[:20])}{more}")
        return replace(plan, warnings=tuple(self.warnings))

    def gpu(self, value: object, path: Path) -> Gpu:
        gpu = self.mapping(value, path, "gpu")
        self.position(gpu, path, "gpus")
        number = self.whole(MAX_NUMBER)
        names = dict(zip(BUFFERS, ("input_chunks", "output_chunks", "scratch_chunks"), strict=True))
        chunks = {buffer: self.of(gpu, name, path, number) for buffer, name in names.items()}
        self.peers: dict[str, list[int]] = {MEMORY: [], PORT: []}
        self.switches: list[SwitchChannel] = []
        self.rank = path[-1]
        self.every(gpu, "channels", path, self.channel)
        self.accesses: list[tuple[str, ...]] = []  # channel types of the remote buffers
        self.buffers = self.every(gpu, "remote_buffers", path, self.remote_buffer)
        self.semaphores = self.every(gpu, "semaphores", path, self.semaphore)
        return Gpu(
            chunks=chunks,
            blocks=self.of(gpu, "threadblocks", path, self.listed(self.block)),
            peers={kind: tuple(peers) for kind, peers in self.peers.items()},
            switches=tuple(self.switches),
            remote_buffers=self.buffers,
            semaphores=self.semaphores,
        )

    def position(self, value: dict, path: Path, what: str) -> None:
        """An id is the position in the list."""
        number = self.of(value, "id", path, self.whole(MAX_NUMBER))
        if number != path[-1]:
            self.refuse((*path, "id"), f"is {number} at place {path[-1]} of {what}", f"write {path[-1]}")

    def peer(self, value: object, path: Path) -> int:
        rank = self.whole(MAX_NUMBER)(value, path)
        if rank >= self.ranks or rank == self.rank:
            problem = f"is {rank}, " + ("its own rank" if rank == self.rank else f"not one of {self.ranks} ranks")
            self.refuse(path, problem, f"write another rank of 0..{self.ranks - 1}")
        return rank

    def channel(self, value: object, path: Path) -> None:
        channel = self.mapping(value, path, "channel")
        kind = self.of(channel, "channel_type", path, self.word(*CHANNEL_TYPES))
        if kind != SWITCH:
            self.peers[kind] += self.of(channel, "connected_to", path, self.listed(self.peer))
            return
        # Older plans say "buff".
        key = "buffer_type" if "buffer_type" in channel else "buff" if "buff" in channel else "buffer_type"
        buffer = self.of(channel, key, path, self.word(*BUFFERS))
        for number, ranks in enumerate(self.of(channel, "rank_groups", path, self.listed(self.group))):
            if self.rank not in ranks:
                where = (*path, "rank_groups", number, "ranks")
                self.refuse(where, f"lacks rank {self.rank}, which the channel is of", "add it")
            self.switches.append(SwitchChannel(buffer, ranks))

    def group(self, value: object, path: Path) -> tuple[int, ...]:
        group = self.mapping(value, path, "group")
        ranks = self.of(group, "ranks", path, self.listed(self.whole(max(self.ranks - 1, 0))))
        size = self.of(group, "size", path, self.whole(MAX_NUMBER), len(ranks))
        if size != len(ranks) or len(set(ranks)) < len(ranks):
            self.refuse(
                (*path, "size"), f"is {size}, for ranks {list(ranks)}", "write each rank once, and their number"
            )
        return ranks

    def remote_buffer(self, value: object, path: Path) -> RemoteBuffer:
        buffer = self.mapping(value, path, "buffer")
        kinds = self.every(buffer, "access_channel_types", path, self.word(MEMORY, PORT))
        self.accesses.append(kinds or (MEMORY, PORT))
        rank = self.of(buffer, "rank", path, self.peer)
        return RemoteBuffer(rank, self.of(buffer, "type", path, self.word(*BUFFERS)))

    def semaphore(self, value: object, path: Path) -> int:
        return self.of(self.mapping(value, path, "semaphore"), "init_value", path, self.whole(2**31 - 1))

    def block(self, value: object, path: Path) -> ThreadBlock:
        block = self.mapping(value, path, "block")
        self.position(block, path, "threadblocks")
        self.positions: dict[str, tuple[int, ...]] = {}
        self.references: dict[str, tuple[int, ...]] = {}
        for key, kind, numbers, into in (
            ("channels", "channel_type", "channel_ids", self.positions),
            ("remote_buffer_refs", "access_channel_type", "remote_buffer_ids", self.references),
        ):

            def read(value: object, path: Path, kind: str = kind, numbers: str = numbers, into: dict = into) -> None:
                entry = self.mapping(value, path, "of block")
                name = self.of(entry, kind, path, self.word(*CHANNEL_TYPES))
                if into is self.references:
                    there, what = len(self.buffers), "remote buffers"
                else:
                    there = len(self.switches) if name == SWITCH else len(self.peers[name])
                    what = f"{name} channels"
                listed = self.of(entry, numbers, path, self.listed(self.one_of(there, what)))
                for place, number in enumerate(listed if into is self.references else ()):
                    if name != SWITCH and name not in self.accesses[number]:
                        problem = f"is {number}, a buffer that is not for {name} channels"
                        self.refuse((*path, numbers, place), problem, "add it to its access_channel_types")
                into[name] = into.get(name, ()) + listed

            self.every(block, key, path, read)
        operations = self.of(block, "ops", path, self.listed(self.operation))
        return ThreadBlock(operations=operations, channels=self.positions, remote_buffers=self.references)

    def one_of(self, there: int, what: str) -> Callable[[object, Path], int]:
        def read(value: object, path: Path) -> int:
            number = self.whole(MAX_NUMBER)(value, path)
            if number >= there:
                remedy = f"write 0 to {there - 1}" if there else "list one there first"
                self.refuse(path, f"is {number}, and there are {there} {what}", remedy)
            return number

        return read

    # -- operations

    def operation(self, value: object, path: Path) -> Operation:
        self.operations += 1
        if self.operations > MAX_OPERATIONS:
            self.refuse(path, f"is one of more than {MAX_OPERATIONS} operations", "write fewer")
        fields = self.mapping(value, path, "operation")
        name = self.of(fields, "name", path, self.text_of)
        if name not in KINDS:
            # Executors refuse it, and so does verification; the rest of the plan can be looked at.
            self.unread = {key: where for key, where in self.unread.items() if where[:-1] != path}
            return Operation(name=name, path=path_text(path))
        kind = KINDS[name]
        if name == "pipeline":
            return self.pipeline(fields, path)
        channel_type = self.of(fields, "channel_type", path, self.word("none", *CHANNEL_TYPES), "none")
        channel_type = "" if channel_type == "none" else channel_type
        if kind.channels and channel_type not in kind.channels:
            if not channel_type:
                self.refuse(path, f'{name} lacks "channel_type"', f"write one of {', '.join(kind.channels)}")
            self.refuse((*path, "channel_type"), f"is {channel_type} for {name}", f"write {' or '.join(kind.channels)}")
        self.type = channel_type
        fields = self.taken(fields, path, kind)
        there = len(self.positions.get(channel_type, ()))
        channels = self.every(fields, "channel_ids", path, self.one_of(there, f"{channel_type} channels of the block"))
        semaphores = self.every(fields, "semaphore_ids", path, self.one_of(len(self.semaphores), "semaphores"))
        barrier, blocks = -1, 0
        if name == "barrier":
            barrier = self.of(fields, "barrier_id", path, self.whole(MAX_NUMBER))
            blocks = self.of(fields, "num_threadblocks", path, self.whole(MAX_NUMBER, 1))
        if name in SYNCHRONIZING:
            needed = "channel_ids" if kind.channels else "semaphore_ids" if name in SEMAPHORES else ""
            if needed and not (channels or semaphores):
                self.refuse(path, f"{name} names no {needed}", f'write "{needed}"')
        share = self.of(fields, "tbg_info", path, self.share, (0, 1))
        operation = Operation(
            name=name, path=path_text(path), channel_type=channel_type, channels=channels, semaphores=semaphores,
            barrier=barrier, blocks=blocks, share=share,
            sources=self.every(fields, "src_buff", path, self.reference),
            targets=self.every(fields, "dst_buff", path, self.reference),
        )  # fmt: skip
        fault = operand_fault(operation)
        if fault is not None:
            self.refuse((*path, *fault.path), fault.problem, fault.remedy)
        return operation

    def taken(self, fields: dict, path: Path, kind: Kind) -> dict:
        """The fields of an operation that executors look at, which know only sums."""
        unused = set() if kind.channels else {"channel_ids"}
        unused |= set() if kind.unit else {"tbg_info"}
        unused |= set() if fields["name"] in SEMAPHORES else {"semaphore_ids"}
        for key in fields:
            if key in unused:
                self.unread.setdefault(f"{fields['name']} {key}", (*path, key))
        if kind.reduces and fields.get("reduce_op", "sum") != "sum":
            shown = _shown(fields["reduce_op"])
            where = f"{self.source}: {path_text(path)}.reduce_op"
            self.warnings.append(f"{where} is {shown}, and executors add all the same")
        return {key: value for key, value in fields.items() if key not in unused}

    def pipeline(self, fields: dict, path: Path) -> Operation:
        context = self.mapping(self.of(fields, "iter_context", path, lambda value, _: value), path, "iter_context")
        where = (*path, "iter_context")
        unit = self.of(context, "unit_size", where, self.whole(_BYTES, 1))
        chunks = self.of(context, "num_chunks", where, self.whole(MAX_NUMBER, 1))
        inner = self.of(fields, "ops", path, self.listed(self.operation))
        for number, operation in enumerate(inner):
            if operation.name == "pipeline":
                self.refuse((*path, "ops", number), "is a pipeline in a pipeline", "write one of them")
        return Operation(name="pipeline", path=path_text(path), unit_bytes=unit, chunks=chunks, inner=inner)

    def share(self, value: object, path: Path) -> tuple[int, int]:
        info = self.mapping(value, path, "tbg_info")
        size = self.of(info, "tbg_size", path, self.whole(MAX_NUMBER, 1))
        return self.of(info, "tb_id", path, self.whole(size - 1)), size

    def reference(self, value: object, path: Path) -> Reference:
        fields = self.mapping(value, path, "reference")
        index, size = (self.of(fields, key, path, self.whole(MAX_NUMBER)) for key in ("index", "size"))
        if "switch_channel_id" in fields:
            there = len(self.positions.get(SWITCH, ()))
            read = self.one_of(there, "switch channels of the block")
            return Grouped(self.of(fields, "switch_channel_id", path, read), index, size)
        if "buffer_id" in fields:
            there = len(self.references.get(self.type, ()))
            read = self.one_of(there, f"remote buffers of the block for {self.type or 'no'} channels")
            return Remote(self.of(fields, "buffer_id", path, read), index, size)
        if "type" not in fields:
            self.refuse(path, "names no buffer", 'write "type", "buffer_id" or "switch_channel_id"')
        return Local(self.of(fields, "type", path, self.word(*BUFFERS)), index, size)


def _shown(value: object) -> str:
    text = json.dumps(value)
    return text if len(text) <= 40 else text[:40] + "…"
