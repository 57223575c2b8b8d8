"""Small edits of MSCCL++ plans (the raw JSON object), all of them, in a fixed order."""

from __future__ import annotations

from collections import defaultdict
from typing import NamedTuple

RELAXED = {"signal": "rlxsignal", "wait": "rlxwait"}
CHUNKS = {"i": "input_chunks", "o": "output_chunks", "s": "scratch_chunks"}
MEETINGS = ("nop", "barrier")


class Mutant(NamedTuple):
    """`kind`: what is edited; `detail`: the operation, or those at both sides; `place`: (rank, block, operation)."""

    kind: str
    detail: str
    place: tuple
    plan: dict

    def __str__(self):
        return f"{self.kind} {self.detail} at {self.place}"


def replaced(plan, rank, block, ops):
    """A plan with other operations of one block; all else is shared with the old one."""
    gpus = list(plan["gpus"])
    blocks = list(gpus[rank]["threadblocks"])
    blocks[block] = {**blocks[block], "ops": ops}
    gpus[rank] = {**gpus[rank], "threadblocks": blocks}
    return {**plan, "gpus": gpus}


def lists(ops):
    """(place, list of operations, the block's operations with another such list): the block's own, each pipeline's."""
    yield (), ops, lambda new: new
    for index, op in enumerate(ops):
        if op["name"] == "pipeline":
            yield (index,), op["ops"], lambda new, i=index: [*ops[:i], {**ops[i], "ops": new}, *ops[i + 1 :]]


def neighbour(ops, index, step):
    """The next operation on one side that is not a nop."""
    index += step
    while 0 <= index < len(ops) and ops[index]["name"] == "nop":
        index += step
    return ops[index]["name"] if 0 <= index < len(ops) else "begin" if step < 0 else "end"


def channels(block, op, keys=("channels", "channel_type", "channel_ids")):
    """How many channels (or remote buffers) of an operation's type its block has."""
    entries = block.get(keys[0], ())
    return sum(len(entry[keys[2]]) for entry in entries if entry[keys[1]] == op.get("channel_type"))


def room(plan, rank, block, op, reference):
    """How many chunks the buffer of a reference has."""
    gpu = plan["gpus"][rank]
    if "switch_channel_id" in reference:
        return gpu["scratch_chunks"] or max(gpu["input_chunks"], gpu["output_chunks"])
    if "buffer_id" not in reference:
        return gpu[CHUNKS[reference["type"]]]
    numbers = [
        number
        for entry in block["remote_buffer_refs"]
        if entry["access_channel_type"] == op["channel_type"]
        for number in entry["remote_buffer_ids"]
    ]
    remote = gpu["remote_buffers"][numbers[reference["buffer_id"]]]
    return plan["gpus"][remote["rank"]][CHUNKS[remote["type"]]]


def edits(plan, rank, block, op):
    """(kind, edited operation) for one operation that is not a nop."""
    name = op["name"]
    if name in RELAXED and op["channel_type"] == "memory":
        yield "relax", {**op, "name": RELAXED[name]}
    ids, there = op.get("channel_ids", ()), channels(block, op)
    if ids and there > 1:
        for at in (0, len(ids) - 1):
            yield "channel", {**op, "channel_ids": [*ids[:at], (ids[at] + 1) % there, *ids[at + 1 :]]}
    if len(ids) > 1 and "src_buff" not in op:
        yield "fewer channels", {**op, "channel_ids": ids[:-1]}
    if "tbg_info" in op:
        group = op["tbg_info"]
        yield "share", {**op, "tbg_info": {**group, "tb_id": (group["tb_id"] + 1) % group["tbg_size"]}}
    remote = channels(block, op, ("remote_buffer_refs", "access_channel_type", "remote_buffer_ids"))
    sides = {side: op[side] for side in ("src_buff", "dst_buff") if side in op}
    smaller, larger = dict(op), dict(op)
    fits = True
    for side, references in sides.items():
        for at in {0, len(references) - 1}:
            reference = references[at]
            rest = room(plan, rank, block, op, reference) - reference["size"] + 1
            if rest > 1:
                moved = {**reference, "index": (reference["index"] + 1) % rest}
                yield "chunk", {**op, side: [*references[:at], moved, *references[at + 1 :]]}
            if "buffer_id" in reference and remote > 1:
                other = {**reference, "buffer_id": (reference["buffer_id"] + 1) % remote}
                yield "buffer", {**op, side: [*references[:at], other, *references[at + 1 :]]}
        smaller[side] = [{**reference, "size": reference["size"] - 1} for reference in references]
        larger[side] = [{**reference, "size": reference["size"] + 1} for reference in references]
        fits &= all(r["index"] + r["size"] <= room(plan, rank, block, op, r) for r in larger[side])
    if sides and all(reference["size"] for references in sides.values() for reference in smaller[next(iter(sides))]):
        yield "size", smaller
    elif sides and fits:
        yield "size", larger


def mutants(plan):
    """All edits of a plan."""
    for rank, gpu in enumerate(plan["gpus"]):
        for number, semaphore in enumerate(gpu.get("semaphores", ())):
            for by in (-1, 1):
                if semaphore["init_value"] + by >= 0:
                    changed = list(gpu["semaphores"])
                    changed[number] = {**semaphore, "init_value": semaphore["init_value"] + by}
                    gpus = [*plan["gpus"][:rank], {**gpu, "semaphores": changed}, *plan["gpus"][rank + 1 :]]
                    yield Mutant("semaphore", f"{by:+}", (rank, number), {**plan, "gpus": gpus})
        for number, block in enumerate(gpu["threadblocks"]):
            for outer, ops, whole in lists(block["ops"]):
                for index, op in enumerate(ops):
                    place = (rank, number, *outer, index)

                    def edited(new, rank=rank, number=number, whole=whole):
                        return replaced(plan, rank, number, whole(new))

                    sides = f"{neighbour(ops, index, -1)}·{neighbour(ops, index, 1)}"
                    kind, detail = ("drop nop", sides) if op["name"] == "nop" else ("drop", op["name"])
                    yield Mutant(kind, detail, place, edited([*ops[:index], *ops[index + 1 :]]))
                    if index + 1 < len(ops) and op != (after := ops[index + 1]):
                        names = f"{op['name']}·{after['name']}"
                        yield Mutant("swap", names, place, edited([*ops[:index], after, op, *ops[index + 2 :]]))
                    if op["name"] in MEETINGS or op["name"] == "pipeline":
                        continue
                    if "src_buff" not in op:
                        yield Mutant("double", op["name"], place, edited([*ops[:index], op, *ops[index:]]))
                    for kind, other in edits(plan, rank, block, op):
                        yield Mutant(kind, op["name"], place, edited([*ops[:index], other, *ops[index + 1 :]]))


def spread(plan, number):
    """Up to so many edits of each kind and detail, evenly among all."""
    groups = defaultdict(list)
    for mutant in mutants(plan):
        groups[mutant.kind, mutant.detail].append(mutant)
    for group in groups.values():
        taken = min(number, len(group))
        yield from (group[n * len(group) // taken] for n in range(taken))
