"""TACOS's all_gather as its paper tells it, made causal, small and slow: what ours is measured against.

At every moment at which something arrives, what ranks lack is put into random order; each is given to a random one of
the fastest free links whose source holds it. A transfer that was overtaken delivers something else that its source
held when it began, if there is any. Nothing is shared with the synthesizer: links are tuples, times are integers.
"""

from __future__ import annotations

from random import Random


def all_gather(n: int, links: list[tuple[int, int, int]], chunks: int, seed: int) -> int:
    """When the last chunk arrives.

    Parameters
    ----------
    n : int
        Ranks; rank r begins with chunks ``r * chunks .. (r + 1) * chunks - 1``.
    links : list of (source, target, time that a chunk takes)
    chunks : int
        Per rank.
    seed : int
    """
    random = Random(seed)
    since = [dict.fromkeys(range(r * chunks, (r + 1) * chunks), 0) for r in range(n)]
    into: list[list[int]] = [[] for _ in range(n)]
    for i, (_, target, _) in enumerate(links):
        into[target].append(i)
    needs = [(v, c) for v in range(n) for c in range(n * chunks) if c not in since[v]]
    flying: dict[int, tuple[int, int, int]] = {}
    now = 0
    while True:
        for i in sorted(i for i, (end, _, _) in flying.items() if end == now):
            _, begun, chunk = flying.pop(i)
            source, target, _ = links[i]
            if chunk in since[target]:
                others = [c for c, t in since[source].items() if t <= begun and c not in since[target]]
                if not others:
                    continue
                chunk = random.choice(sorted(others))
            since[target][chunk] = now
        needs = [(v, c) for v, c in needs if c not in since[v]]
        if not needs:
            return now
        random.shuffle(needs)
        for v, c in needs:
            free = [i for i in into[v] if i not in flying and c in since[links[i][0]]]
            if free:
                least = min(links[i][2] for i in free)
                i = random.choice([i for i in free if links[i][2] == least])
                flying[i] = now + least, now, c
        now = min(end for end, _, _ in flying.values())
