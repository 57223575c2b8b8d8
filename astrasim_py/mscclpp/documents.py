"""The JSON objects of ranks and their thread blocks, from operations that name ranks, buffers and blocks."""

from collections import defaultdict
from collections.abc import Mapping, Sequence

from astrasim_py.mscclpp.drafts import Channel, Instruction, Range, channel_ends
from astrasim_py.mscclpp.ir import MEMORY, PORT
from astrasim_py.mscclpp.operations import KINDS
from astrasim_py.mscclpp.stores import BlockName


def rank_documents(written: Mapping[BlockName, list[Instruction]], scratch: Sequence[int]) -> list[dict[str, object]]:
    """The objects of all ranks, without their numbers and the chunks of their input and output.

    `written`: the operations of all blocks, those of a rank numbered from 0. `scratch`: chunks of scratch by rank.
    """
    used: dict[str, set[Channel]] = defaultdict(set)
    for instructions in written.values():
        for instruction in instructions:
            used[instruction.channel_type] |= set(instruction.channels)
    channels = {kind: sorted(used[kind]) for kind in (MEMORY, PORT)}
    return [_rank_document(rank, written, channels, chunks) for rank, chunks in enumerate(scratch)]


def _rank_document(
    rank: int, written: Mapping[BlockName, list[Instruction]], channels: Mapping[str, list[Channel]], scratch: int
) -> dict[str, object]:
    of_rank = {block: instructions for block, instructions in written.items() if block.rank == rank}
    channels = {kind: [channel for channel in keys if rank in channel_ends(channel)] for kind, keys in channels.items()}
    remote: dict[tuple[int, str], set[str]] = defaultdict(set)
    semaphores: dict[tuple[int, int], int] = {}
    for instructions in of_rank.values():
        for instruction in instructions:
            for pair in instruction.semaphores:
                semaphores.setdefault(pair, len(semaphores))
            for covered in instruction.ranges:
                if covered.rank != rank:
                    remote[covered.rank, covered.buffer].add(instruction.channel_type)
    buffers = {key: number for number, key in enumerate(sorted(remote))}
    return {
        "scratch_chunks": scratch,
        "threadblocks": [
            _block_document(block, instructions, channels, remote, buffers, semaphores)
            for block, instructions in of_rank.items()
        ],
        "channels": [
            {"channel_type": kind, "connected_to": [sum(channel_ends(channel)) - rank for channel in keys]}
            for kind, keys in channels.items()
            if keys
        ],
        "remote_buffers": [
            {"rank": owner, "type": buffer, "access_channel_types": sorted(remote[owner, buffer])}
            for owner, buffer in buffers
        ],
        "semaphores": [{"init_value": 0} for _ in semaphores],
    }


def _block_document(
    block: BlockName,
    written: list[Instruction],
    channels: Mapping[str, list[Channel]],
    remote: Mapping[tuple[int, str], set[str]],
    buffers: Mapping[tuple[int, str], int],
    semaphores: Mapping[tuple[int, int], int],
) -> dict[str, object]:
    """The JSON object of a thread block; its operations name positions in its lists."""
    used = {(instruction.channel_type, channel) for instruction in written for channel in instruction.channels}
    channels_of = {kind: [key for key in keys if (kind, key) in used] for kind, keys in channels.items()}
    used_buffers = {(covered.rank, covered.buffer) for instruction in written for covered in instruction.ranges}
    reached = {kind: [key for key in buffers if key in used_buffers and kind in remote[key]] for kind in (MEMORY, PORT)}

    def reference(covered: Range, kind: str) -> dict[str, object]:
        if covered.rank == block.rank:
            where: dict[str, object] = {"type": covered.buffer}
        else:
            where = {"buffer_id": reached[kind].index((covered.rank, covered.buffer))}
        return {**where, "index": covered.first, "size": covered.size}

    def operation(instruction: Instruction) -> dict[str, object]:
        fields: dict[str, object] = {"name": instruction.name}
        for key, ranges in (("src_buff", instruction.sources), ("dst_buff", instruction.targets)):
            if ranges:
                fields[key] = [reference(covered, instruction.channel_type) for covered in ranges]
        if instruction.channels and not (instruction.targets and instruction.channel_type == MEMORY):
            positions = channels_of[instruction.channel_type]
            fields["channel_ids"] = [positions.index(channel) for channel in instruction.channels]
        if instruction.channel_type:
            fields["channel_type"] = instruction.channel_type
        if instruction.semaphores:
            fields["semaphore_ids"] = [semaphores[pair] for pair in instruction.semaphores]
        if instruction.blocks:
            fields |= {"barrier_id": 0, "num_threadblocks": instruction.blocks}
        if KINDS[instruction.name].reduces:
            fields["reduce_op"] = "sum"
        return fields

    return {
        "id": block.number,
        "ops": [operation(instruction) for instruction in written],
        "channels": [
            {"channel_type": kind, "channel_ids": [channels[kind].index(c) for c in keys]}
            for kind, keys in channels_of.items()
            if keys
        ],
        "remote_buffer_refs": [
            {"access_channel_type": kind, "remote_buffer_ids": [buffers[key] for key in keys]}
            for kind, keys in reached.items()
            if keys
        ],
    }
