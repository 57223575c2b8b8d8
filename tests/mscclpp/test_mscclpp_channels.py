"""Channels must lead to where buffers are."""

from __future__ import annotations

import copy

import pytest

from astrasim_py.core.errors import AlgorithmError
from astrasim_py.mscclpp.one_sided import OneSided
from astrasim_py.mscclpp.reader import plan_of
from astrasim_py.mscclpp.verify import verify_plan


@pytest.fixture
def document():
    """Three ranks put their shards to the two others by port channels."""
    program = OneSided("all_gather", 3)
    for rank in range(3):
        block, peers = program.block(rank), [peer for peer in range(3) if peer != rank]
        for peer in peers:
            block.signal(peer, port=True)
        for peer in peers:
            block.wait(peer, port=True)
        for peer in peers:
            block.put(("o", rank), peer, ("o", rank), port=True)
        for peer in peers:
            block.wait(peer, port=True)
    document = copy.deepcopy(program.plan().document)
    assert verify_plan(plan_of(document)).passes
    return document


def test_a_port_channel_to_another_rank_than_the_buffer(document):
    ops = document["gpus"][1]["threadblocks"][0]["ops"]
    (first, second) = (number for number, op in enumerate(ops) if op["name"] == "pwsf")
    ops[first]["channel_ids"], ops[second]["channel_ids"] = ops[second]["channel_ids"], ops[first]["channel_ids"]
    verdict = verify_plan(plan_of(document))
    assert verdict.well_formed is False
    path = f"gpus[1].threadblocks[0].ops[{first}]"
    assert verdict.problems[0] == f"plan: {path}: pwsf writes to rank 0 over a channel to rank 2"


def test_a_buffer_for_another_type_of_channel(document):
    document["gpus"][1]["remote_buffers"][1]["access_channel_types"] = ["memory"]
    with pytest.raises(AlgorithmError, match="a buffer that is not for port channels; add it to its access_channel_ty"):
        plan_of(document)
