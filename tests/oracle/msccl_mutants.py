"""Random small edits of MSCCL-IR programs, as text to text, and two programs to edit that need no other file."""

from __future__ import annotations

import itertools
import xml.etree.ElementTree as ElementTree

RECEIVES = ("r", "rcs", "rrc", "rrs", "rrcs")
MOVED = ("type", "srcbuf", "srcoff", "dstbuf", "dstoff", "cnt")


def mutate(text, rng):
    """One random edit.

    Returns
    -------
    (str, str) or None
        Kind and new text; None where the kind that was drawn has nothing to edit.
    """
    root = ElementTree.fromstring(text)
    kind = rng.choice(sorted(KINDS))
    return (kind, ElementTree.tostring(root, encoding="unicode")) if KINDS[kind](root, rng) else None


def pick(root, rng, *types):
    """(gpu, tb, index) of a random step, of given types; None if there is none."""
    found = [
        (gpu, tb, index)
        for gpu in root
        for tb in gpu
        for index, step in enumerate(tb)
        if not types or step.get("type") in types
    ]
    return rng.choice(found) if found else None


def shift(step, key, by):
    step.set(key, str(int(step.get(key)) + by))


def renumber(gpu, tb, order):
    """Put the steps with the old indices `order` (None: a new one) in a thread block; dependencies follow theirs."""
    new = {old: at for at, old in enumerate(order) if old is not None}
    last = max(0, len(order) - 1)
    for at, step in enumerate(tb):
        step.set("s", str(at))
    for step in gpu.iter("step"):
        if step.get("depid") == tb.get("id"):
            old = int(step.get("deps"))
            step.set("deps", str(new.get(old, min(old, last))))


def remove(root, rng, *types):
    place = pick(root, rng, *types)
    if place is None:
        return False
    gpu, tb, index = place
    tb.remove(tb[index])
    renumber(gpu, tb, [i for i in range(len(tb) + 1) if i != index])
    return True


def duplicate(root, rng, *types):
    place = pick(root, rng, *types)
    if place is None:
        return False
    gpu, tb, index = place
    tb.insert(index, ElementTree.Element("step", tb[index].attrib))
    renumber(gpu, tb, [*range(index), None, *range(index, len(tb) - 1)])
    return True


def move_step(root, rng):
    gpu, tb, index = pick(root, rng)
    rest = [i for i in range(len(tb)) if i != index]
    if not rest:
        return False
    order = list(rest)
    order.insert(rng.choice(rest), index)
    tb[:] = [tb[i] for i in order]
    renumber(gpu, tb, order)
    return True


def edit(test, change):
    """An edit of one random step that passes the test."""

    def mutation(root, rng):
        found = [step for step in root.iter("step") if test(step)]
        if found:
            change(rng.choice(found), rng)
        return bool(found)

    return mutation


def change_type(old, new):
    return edit(lambda step: step.get("type") == old, lambda step, rng: step.set("type", new))


def real(step):
    return step.get("type") != "nop"


def waiting(step):
    return step.get("depid") != "-1"


def swap_receives(root, rng):
    """Two receives of one connection change places."""
    found = []
    for tb in root.iter("tb"):
        found += itertools.pairwise(step for step in tb if step.get("type") in RECEIVES)
    if not found:
        return False
    a, b = rng.choice(found)
    for key in MOVED:
        old = a.get(key)
        a.set(key, b.get(key))
        b.set(key, old)
    return True


def change_channel(root, rng):
    _, tb, _ = pick(root, rng)
    channels = int(root.get("nchannels"))
    tb.set("chan", str(rng.choice([c for c in range(channels + 1) if c != int(tb.get("chan"))])))
    root.set("nchannels", str(max(channels, int(tb.get("chan")) + 1)))
    return True


#: Name -> edit of a document in place, which says whether it found anything to edit.
KINDS = {
    "drop a dependency": edit(
        lambda step: real(step) and waiting(step), lambda step, rng: step.attrib.update(depid="-1", deps="-1")
    ),
    "change a dependency": edit(waiting, lambda step, rng: shift(step, "deps", rng.choice((-1, 1)))),
    "drop a nop": lambda root, rng: remove(root, rng, "nop"),
    "clear hasdep": edit(lambda step: step.get("hasdep") == "1", lambda step, rng: step.set("hasdep", "0")),
    "swap two receives": swap_receives,
    "change an offset": edit(
        real, lambda step, rng: shift(step, rng.choice(("srcoff", "dstoff")), rng.choice((-2, -1, 1, 2)))
    ),
    "change a buffer": edit(real, lambda step, rng: step.set(rng.choice(("srcbuf", "dstbuf")), rng.choice("ios"))),
    "change a count": edit(real, lambda step, rng: shift(step, "cnt", rng.choice((-1, 1)))),
    "delete a send": lambda root, rng: remove(root, rng, "s"),
    "delete a receive": lambda root, rng: remove(root, rng, "r"),
    "duplicate a re": lambda root, rng: duplicate(root, rng, "re"),
    "turn rrc into r": change_type("rrc", "r"),
    "turn rrcs into rrs": change_type("rrcs", "rrs"),
    "move a step": move_step,
    "change a channel": change_channel,
}


# ------------------------------------------------------------------------------------- programs to edit


def document(name, ranks, blocks, *, proto="Simple", coll="allreduce", chunks=None, scratch=0, channels=1):
    """XML of a program in place: `blocks(rank)` gives (send, recv, channel, [(type, src, dst, count, wait)])."""
    chunks = chunks or ranks
    table = {rank: blocks(rank) for rank in range(ranks)}
    lines = []
    for rank, tbs in table.items():
        lines.append(f'<gpu id="{rank}" i_chunks="{chunks}" o_chunks="{chunks}" s_chunks="{scratch}">')
        awaited = {step[4] for *_, steps in tbs for step in steps if step[4]}
        for number, (send, recv, channel, steps) in enumerate(tbs):
            lines.append(f'<tb id="{number}" send="{send}" recv="{recv}" chan="{channel}">')
            for s, (kind, src, dst, count, wait) in enumerate(steps):
                depid, deps = wait or (-1, -1)
                lines.append(
                    f'<step s="{s}" type="{kind}" srcbuf="{src[0]}" srcoff="{src[1:]}" dstbuf="{dst[0]}" '
                    f'dstoff="{dst[1:]}" cnt="{count}" depid="{depid}" deps="{deps}" '
                    f'hasdep="{int((number, s) in awaited)}"/>'
                )
            lines.append("</tb>")
        lines.append("</gpu>")
    head = f'<algo name="{name}" proto="{proto}" nchannels="{channels}" nchunksperloop="{chunks}" ngpus="{ranks}" '
    return f'{head}coll="{coll}" inplace="1">' + "\n".join(lines) + "</algo>"


def fused_ring(n, count=1):
    """A ring of n ranks, all_reduce, one thread block per rank, fused steps of `count` chunks."""

    def blocks(rank):
        def step(kind, chunk):
            place = f"i{chunk % n * count}"
            return kind, place, place, count, None

        steps = [step("s", rank)]
        steps += [step("rrs", rank - k) for k in range(1, n - 1)]
        steps += [step("rrcs", rank + 1)]
        steps += [step("rcs", rank - k) for k in range(n - 2)]
        steps += [step("r", rank + 2)]
        return [((rank + 1) % n, (rank - 1) % n, 0, steps)]

    return document("ring", n, blocks, chunks=n * count)


def all_pairs(n):
    """Every rank adds its share of all others' from scratch and sends the sum to all: nops, `re`, waits both ways."""

    def blocks(rank):
        peers = [p for p in range(n) if p != rank]
        total = (n - 1, 2 * n - 4)
        tbs = [
            (
                p,
                p,
                0,
                [
                    ("s", f"i{p}", f"s{rank}", 1, None),
                    ("r", f"i{rank}", f"s{p}", 1, None),
                    ("s", f"i{rank}", f"i{rank}", 1, total),
                    ("r", f"i{p}", f"i{p}", 1, None),
                ],
            )
            for p in peers
        ]
        adds = [("nop", "i-1", "o-1", 0, (at, 1)) for at in range(1, n - 1)]
        adds += [("re", f"s{p}", f"i{rank}", 1, None if at else (0, 1)) for at, p in enumerate(peers)]
        return [*tbs, (-1, -1, 0, adds)]

    return document("all pairs", n, blocks, proto="LL", scratch=n)


def random_program(rng):
    """Any well-formed program of a few ranks, seldom a useful one: it may hang, race, and add what it should not."""
    n, per = rng.randint(2, 4), rng.randint(1, 2)
    chunks, channels, careful = n * per, rng.randint(1, 2), rng.random() < 0.6
    eager = rng.choice((0, 0, 0.5, 1))
    blocks = {rank: [] for rank in range(n)}  # [send, recv, chan, [step]]
    for source in range(n):
        for target in range(n):
            for channel in range(channels):
                if source == target or rng.random() < 0.4:
                    continue
                for rank, side, peer in ((source, 0, target), (target, 1, source)):
                    free = [b for b in blocks[rank] if b[2] == channel and b[side] < 0 and rng.random() < 0.7]
                    block = rng.choice(free) if free else [-1, -1, channel, []]
                    block[side] = peer
                    if not free:
                        blocks[rank].append(block)
    senders = {(r, b[0], b[2]): b for r in blocks for b in blocks[r] if b[0] >= 0}
    receivers = {(b[1], r, b[2]): b for r in blocks for b in blocks[r] if b[1] >= 0}

    def place(count):
        return f"{rng.choice('iioos')}{rng.randint(0, chunks - count)}"

    for time in range(rng.randint(2, 30)):
        count = rng.choice((1, 1, 1, 2, 3)) if chunks > 2 else 1
        if senders and rng.random() < 0.8:
            key = rng.choice(sorted(senders))
            senders[key][3].append(["s", place(count), place(count), count, time])
            receivers[key][3].append([rng.choice(("r", "rrc")), place(count), place(count), count, time])
        else:
            rank = rng.randrange(n)
            if blocks[rank]:
                rng.choice(blocks[rank])[3].append([rng.choice(("cpy", "re")), place(count), place(count), count, time])
    table = {}
    for rank, tbs in blocks.items():
        for block in tbs:
            steps = block[3]
            if rng.random() < eager:
                steps.sort(key=lambda step: step[0] != "s")
            for _ in range(rng.choice((0, 0, 0, 1, 3)) if len(steps) > 1 else 0):
                at = rng.randrange(len(steps) - 1)
                a, b = steps[at], steps[at + 1]
                if a[0] != "s" and b[0] == "s":
                    steps[at], steps[at + 1] = b, a
            for at in range(len(steps) - 1, 0, -1):
                first, second = steps[at - 1], steps[at]
                if first[0] in ("r", "rrc") and second[0] == "s" and first[3] == second[3] and rng.random() < 0.8:
                    first[0] = "rcs" if first[0] == "r" else rng.choice(("rrs", "rrcs"))
                    del steps[at]
        table[rank] = []
        for number, (send, recv, channel, steps) in enumerate(tbs):
            out = []
            for kind, src, dst, count, time in steps:
                others = [(b, s) for b in range(len(tbs)) if b != number for s in range(len(tbs[b][3]))]
                if careful or rng.random() < 0.98:
                    others = [(b, s) for b, s in others if tbs[b][3][s][4] < time]
                waits = [rng.choice(others) for _ in range(rng.choice((0, 0, 1, 1, 2)))] if others else []
                if careful:
                    waits = [max(wait for wait in others if wait[0] == b) for b in sorted({b for b, _ in others})]
                out += [("nop", "i-1", "o-1", 0, wait) for wait in waits[:-1]]
                out.append((kind, src, dst, count, waits[-1] if waits else None))
            table[rank].append((send, recv, channel, out))
        # Dependencies name steps without nops so far: count these.
        real = [[i for i, step in enumerate(tb[3]) if step[0] != "nop"] for tb in table[rank]]
        for tb in table[rank]:
            tb[3][:] = [(*step[:4], step[4] and (step[4][0], real[step[4][0]][step[4][1]])) for step in tb[3]]
    coll = rng.choice(("allreduce", "allgather", "reduce_scatter", "alltoall", "custom"))
    name = rng.choice((f"Broadcast(n={n},root=1)", f"Reduce(n={n},root=0)", "alltonext-forward"))
    text = document(
        name,
        n,
        table.get,
        coll=coll,
        chunks=chunks,
        scratch=chunks,
        channels=channels,
        proto=rng.choice(("Simple", "LL")),
    )
    return text.replace('inplace="1"', f'inplace="{rng.randint(0, 1)}"')
