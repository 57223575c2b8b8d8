"""Random MSCCL++ plans that end, most with all the order they need, some without."""

from __future__ import annotations

CHUNKS = 2
NOP = {"name": "nop"}
#: Operations of blocks: local and remote operands that are read, and that are written.
MOVES = {
    "copy": ("l", "l"), "put": ("l", "r"), "get": ("r", "l"), "re": ("ll", "l"), "res": ("ll", "lr"),
    "rre": ("lr", "l"), "rres": ("lr", "lr"),
}  # fmt: skip
REQUESTS = ("put", "pws", "pwsf")


class RandomPlan:
    """Operations are drawn one after the other, a wait with its signal, so that blocks end. `rng`: what draws."""

    def __init__(self, rng):
        self.rng, self.ranks, self.blocks = rng, rng.choice((2, 2, 3)), rng.choice((1, 2))
        self.care = rng.choice((0.6, 0.8, 0.95))
        self.ops = {(rank, block): [] for rank in range(self.ranks) for block in range(self.blocks)}
        if rng.random() < 0.9:
            self.meet(rng.choice(("", "rlx")))
        for _ in range(rng.randrange(3, 9)):
            rng.choice((self.move, self.move, self.move, self.request, self.signal, self.semaphore, self.barrier))()
        if rng.random() < 0.9:
            self.barrier()
            self.meet("")

    def peers(self, rank):
        return [peer for peer in range(self.ranks) if peer != rank]

    def channel(self, block, rank, peer):
        """Blocks of the same number share a channel of each type."""
        return block * (self.ranks - 1) + self.peers(rank).index(peer)

    def nop(self, ops, least=0.0):
        if self.rng.random() < max(self.care, least):
            ops.append(NOP)

    def draw(self):
        """A block, a peer of its rank, and its operations."""
        rank, block = self.rng.choice(sorted(self.ops))
        return rank, block, self.rng.choice(self.peers(rank)), self.ops[rank, block]

    def operand(self, rank, peer, kind):
        chunk = {"index": self.rng.randrange(CHUNKS), "size": 1}
        buffer = self.rng.choice("iios" if kind == "l" else "ioos")
        if kind == "l":
            return {"type": buffer, **chunk}
        return {"buffer_id": 3 * self.peers(rank).index(peer) + "ios".index(buffer), **chunk}

    def meet(self, prefix):
        for (rank, block), ops in self.ops.items():
            ids = [self.channel(block, rank, peer) for peer in self.peers(rank)]
            names = (f"{prefix}signal", f"{prefix}wait")
            ops += [{"name": name, "channel_ids": ids, "channel_type": "memory"} for name in names]
            ops.append(NOP)

    def move(self):
        rank, block, peer, ops = self.draw()
        name = self.rng.choice(sorted(MOVES))
        sides = [[self.operand(rank, peer, kind) for kind in kinds] for kinds in MOVES[name]]
        if name.startswith("r"):
            sides[1][0] = sides[0][0]
        ops.append({"name": name, "src_buff": sides[0], "dst_buff": sides[1], "channel_type": "memory"})
        self.nop(ops)
        if name not in ("copy", "re") and self.rng.random() < self.care:
            self.signal((rank, block, peer, ops))

    def request(self):
        rank, block, peer, ops = self.draw()
        name = self.rng.choice(REQUESTS)
        sides = {"src_buff": [self.operand(rank, peer, "l")], "dst_buff": [self.operand(rank, peer, "r")]}
        ids = [self.channel(block, rank, peer)]
        ops.append({"name": name, **sides, "channel_ids": ids, "channel_type": "port"})
        if name == "put":
            self.nop(ops)
            self.signal((rank, block, peer, ops), "port")
        else:
            self.wait(rank, block, peer, "port")

    def signal(self, drawn=None, kind=None):
        rank, block, peer, ops = drawn or self.draw()
        kind = kind or self.rng.choice(("memory", "memory", "port"))
        relaxed = kind == "memory" and self.rng.random() < 0.1
        ids = [self.channel(block, rank, peer)]
        ops.append({"name": "rlxsignal" if relaxed else "signal", "channel_ids": ids, "channel_type": kind})
        self.wait(rank, block, peer, kind)

    def wait(self, rank, block, peer, kind):
        """The wait of the same block of a peer."""
        ops, relaxed = self.ops[peer, block], kind == "memory" and self.rng.random() < 0.05
        ids = [self.channel(block, peer, rank)]
        ops.append({"name": "rlxwait" if relaxed else "wait", "channel_ids": ids, "channel_type": kind})
        self.nop(ops)

    def semaphore(self):
        """A block releases the semaphore of the other one."""
        rank, block, _, ops = self.draw()
        other = (block + 1) % self.blocks
        self.nop(ops)
        ops.append({"name": "sem_release", "semaphore_ids": [other]})
        self.ops[rank, other].append({"name": "sem_acquire", "semaphore_ids": [other]})
        self.nop(self.ops[rank, other])

    def barrier(self):
        rank, *_ = self.draw()
        for block in range(self.blocks):
            self.ops[rank, block].append({"name": "barrier", "barrier_id": 0, "num_threadblocks": self.blocks})

    def document(self):
        """The JSON object of the plan, which promises nothing."""
        return {
            "name": "random", "collective": "test", "protocol": "Simple", "inplace": False, "reuse_resources": False,
            "gpus": [self.gpu(rank) for rank in range(self.ranks)],
        }  # fmt: skip

    def gpu(self, rank):
        kinds, peers = ("memory", "port"), self.peers(rank)
        ends = [peer for _ in range(self.blocks) for peer in peers]
        buffers = [{"rank": peer, "type": kind, "access_channel_types": kinds} for peer in peers for kind in "ios"]
        numbers = {"channels": list(range(len(ends))), "buffers": list(range(len(buffers)))}
        blocks = [
            {
                "id": block,
                "ops": self.ops[rank, block],
                "channels": [{"channel_type": kind, "channel_ids": numbers["channels"]} for kind in kinds],
                "remote_buffer_refs": [
                    {"access_channel_type": kind, "remote_buffer_ids": numbers["buffers"]} for kind in kinds
                ],
            }
            for block in range(self.blocks)
        ]
        return {
            "id": rank, "input_chunks": CHUNKS, "output_chunks": CHUNKS, "scratch_chunks": CHUNKS,
            "semaphores": [{"init_value": 0}] * self.blocks, "remote_buffers": buffers, "threadblocks": blocks,
            "channels": [{"channel_type": kind, "connected_to": ends} for kind in kinds],
        }  # fmt: skip
