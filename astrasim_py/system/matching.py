"""Match keys: where each send of a communicator meets its receive."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from astrasim_py.core.errors import AlgorithmError
from astrasim_py.system.plan import RECV, Matching, RankProgram
from astrasim_py.system.rotated import RotatedMatching, RotatedPrograms, unmatched


class Matchings:
    """Matchings of one problem, each made once."""

    def __init__(self) -> None:
        self.matchings: dict[object, Matching | RotatedMatching] = {}
        #: Keys to be numbered: by node, nodes that have one, and their src, dst, tag and bytes.
        self.unnumbered: list[tuple[np.ndarray, np.ndarray, np.ndarray]] = []
        self.known: dict[tuple, Matching] = {}

    def of_communicator(self, key: object, programs: Sequence[RankProgram], what: str) -> Matching | RotatedMatching:
        """Keys of the sends and receives of `programs` (by position)."""
        if isinstance(programs, RotatedPrograms):
            key = ("rotated", key)
            if key not in self.matchings:
                self.matchings[key] = RotatedMatching(programs.rotation, programs.base, what)
        if key in self.matchings:
            return self.matchings[key]
        n = len(programs)
        distinct = {id(program): program for program in programs}
        if not any((program.peer >= 0).any() for program in distinct.values()):
            nothing = {each: np.zeros(len(program), dtype=np.int64) for each, program in distinct.items()}
            self.matchings[key] = Matching(match_key=tuple(nothing[id(program)] for program in programs), keys=0)
            return self.matchings[key]
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
                counts = int(sent[odd[0]]), int(received[odd[0]])
                raise AlgorithmError(what, *unmatched(src, dst, *counts, int(unique_tags[tag])))
        self.matchings[key] = Matching(match_key=tuple(pieces), keys=len(channels))
        return self.matchings[key]

    def by_bytes(self, programs: Sequence[RankProgram], members: Sequence[int]) -> Matching:
        """Under ``message_match: bytes``: channels (src, dst, tag, bytes) over everything that shares the communicator.

        They are numbered when all are known, by `number`.
        """
        key = (tuple(id(p) for p in programs), tuple(members))
        if key not in self.known:
            where = np.asarray(members, dtype=np.int64)
            pieces = []
            for me, program in zip(where.tolist(), programs, strict=True):
                piece = np.zeros(len(program), dtype=np.int64)
                at = np.flatnonzero(program.peer >= 0)
                other = where[program.peer[at]]
                received = program.structure.kind[at] == RECV
                ends = np.where(received, other, me), np.where(received, me, other)
                self.unnumbered.append((piece, at, np.stack([*ends, program.tag[at], program.nbytes[at]])))
                pieces.append(piece)
            self.known[key] = Matching(match_key=tuple(pieces), keys=0)
        return self.known[key]

    def number(self) -> None:
        """Number the channels of `by_bytes`."""
        if not self.unnumbered:
            return
        keys = np.concatenate([part for _, _, part in self.unnumbered], axis=1)
        order = np.lexsort(keys)
        ordered = keys[:, order]
        opens = np.zeros(len(order), dtype=np.int64)
        opens[1:] = (ordered[:, 1:] != ordered[:, :-1]).any(axis=0)
        channel = np.empty(len(order), dtype=np.int64)
        channel[order] = np.cumsum(opens)
        start = 0
        for piece, at, _ in self.unnumbered:
            piece[at] = ~channel[start : start + len(at)]
            start += len(at)
        self.unnumbered = []
