"""Meeting points: where each send of a space meets its receive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrasim_py.core.errors import AlgorithmError
from astrasim_py.system.plan import RECV, Matching, Program


class Matchings:
    """Matchings of one problem, each made once."""

    def __init__(self) -> None:
        self.matchings: dict[object, Matching] = {}
        #: (src, dst, tag, bytes) → channel
        self.numbering: dict[tuple[int, int, int, int], int] = {}
        self.known: dict[tuple, Matching] = {}

    def of_space(self, key: object, programs: Sequence[Program], what: str) -> Matching:
        """Meeting points of the sends and receives of `programs` (by position)."""
        if key in self.matchings:
            return self.matchings[key]
        n = len(programs)
        tags = np.concatenate([p.tag[p.peer >= 0] for p in programs] or [np.zeros(0, np.int64)])
        unique_tags = np.unique(tags)
        keys, receives = [], []
        for position, program in enumerate(programs):
            at = np.flatnonzero(program.peer >= 0)
            peer = program.peer[at].astype(np.int64)
            receive = program.structure.kind[at] == RECV
            pair = np.where(receive, peer * n + position, position * n + peer)
            keys.append(pair * len(unique_tags) + np.searchsorted(unique_tags, program.tag[at]))
            receives.append(receive)
        all_keys = np.concatenate(keys) if keys else np.zeros(0, np.int64)
        receive = np.concatenate(receives) if receives else np.zeros(0, bool)
        channels, inverse = np.unique(all_keys, return_inverse=True)
        received = np.bincount(inverse[receive], minlength=len(channels))
        sent = np.bincount(inverse[~receive], minlength=len(channels))
        single = (received == 1) & (sent == 1)
        meet = np.where(single[inverse], inverse, ~inverse)
        pieces, start = [], 0
        for program in programs:
            piece = np.zeros(len(program), dtype=np.int64)
            at = np.flatnonzero(program.peer >= 0)
            piece[at] = meet[start : start + len(at)]
            start += len(at)
            pieces.append(piece)
        if what:
            odd = np.flatnonzero(received != sent)
            if len(odd):
                channel = int(channels[odd[0]])
                pair, tag = divmod(channel, len(unique_tags))
                src, dst = divmod(pair, n)
                raise AlgorithmError(
                    what,
                    f"rank {src} sends {int(sent[odd[0]])} messages to rank {dst} with tag {int(unique_tags[tag])}, "
                    f"and rank {dst} receives {int(received[odd[0]])} of them",
                    "give every send its receive",
                )
        self.matchings[key] = Matching(meet=tuple(pieces), points=len(channels))
        return self.matchings[key]

    def by_bytes(self, programs: Sequence[Program], members: Sequence[int]) -> Matching:
        """Under ``message_match: bytes``: channels (src, dst, tag, bytes) over everything that shares the space."""
        key = (tuple(id(p) for p in programs), tuple(members))
        if key not in self.known:
            pieces = []
            for position, program in enumerate(programs):
                piece = np.zeros(len(program), dtype=np.int64)
                for at in np.flatnonzero(program.peer >= 0).tolist():
                    me, other = members[position], members[int(program.peer[at])]
                    pair = (other, me) if program.structure.kind[at] == RECV else (me, other)
                    channel = (*pair, int(program.tag[at]), int(program.nbytes[at]))
                    piece[at] = ~self.numbering.setdefault(channel, len(self.numbering))
                pieces.append(piece)
            self.known[key] = Matching(meet=tuple(pieces), points=0)
        return self.known[key]
