"""Claims of scenarios about single collectives: what runs must show of the numbers in their texts."""

from __future__ import annotations

import pytest
from worlds.claims import Rows, claims, listed


@claims()
def first_steps(r: Rows):
    step = r.exposed() / 6
    yield (
        f"{r.us():.2f} µs: 20 µs of compute, and 6 = 2 (4 - 1) steps of 500 ns + 256 KiB / (50 GB/s) = "
        f"{step:.3f} µs each"
    )
    yield f"exposed ({r.exposed():.2f} µs)"
    yield f"the bound ({r.bound():.2f} µs: 20 µs of compute, {r.bound() - 20:.1f} µs for the bytes"
    yield f"then six equal steps of the ring: {r.exposed():.2f} µs, none of it hidden"


@claims()
def latency_or_bandwidth(r: Rows):
    half = [seconds * 16 * 50e9 for seconds in (1e-7, 1e-6, 1e-5)]
    said = (f"{half[0] / 2**10:.0f} KiB", f"{half[1] / 2**10:.0f} KiB", f"{half[2] / 2**20:.1f} MiB")
    latencies = ("100 ns", "1 us", "10 us")
    yield f"{said[0]} for 100 ns, {said[1]} for 1 µs, {said[2]} for 10 µs"
    yield f"{listed((r.bus('512 KiB', each) for each in latencies), '.1f')} GB/s at 512 KiB"
    yield f"{listed((r.bus('2 GiB', each) for each in latencies), '.1f')} GB/s at 2 GiB"
    yield f"({r.us('1 KiB', '10 us'):.0f} to {r.us('64 KiB', '10 us'):.0f} µs from 1 KiB to 64 KiB for 10 µs)"
    yield f"Half of the peak is at {said[0]}, {said[1]} and {said[2]} for latencies of 100 ns, 1 µs and 10 µs"
    assert r.share("2 GiB", "100 ns") == pytest.approx(50, abs=0.01)  # the dashed bound is twice the link


@claims()
def overlap(r: Rows):
    more = [r.us("0.9", tiles) - r.us("1", tiles) for tiles in ("1", "2", "4", "8", "16", "32", "64")]
    yield f"the reduce_scatter for it: {r.ms('1', '1'):.2f} ms, all communication exposed"
    yield f"Four hide most: {r.ms('1', '4'):.2f} ms, {r.exposed('1', '4'):.0f} µs exposed"
    yield f"Eight and 16 are best: {r.ms('1', '8'):.2f} ms"
    yield f"Each has 5 µs of overhead, so that 64 compute for {64 * 5} µs more than one"
    yield f"the layer takes {r.ms('1', '64'):.2f} ms"
    yield f"tiles take {min(more[1:]):.0f} to {max(more):.0f} µs more (one tile: {more[0]:.0f})"
    yield f"Eight or 16: {r.ms('1', '16'):.2f} ms in place of {r.ms('1', '1'):.2f}"
    yield "With more than 16 less is exposed, but each tile costs 5 µs"
    assert r.best("0.9", None) == "8" and r.us("0.9", "2") > r.us("0.9", "1")
    assert r.exposed("1", "64") < r.exposed("1", "32") < r.exposed("1", "16")


@claims("engine=compiled")
def crossover(r: Rows):
    ring, hd, rd, direct, trees = "ring", "halving_doubling", "recursive_doubling", "direct", "trees, 16 chunks"
    small, large = ("switch", "1 KiB"), ("switch", "256 MiB")
    yield f"ring needs 62 ({r.us(*small, ring):.1f} µs at 1 KiB)"
    yield f"halving_doubling 10 ({r.us(*small, hd):.1f} µs), recursive_doubling 5 ({r.us(*small, rd):.1f} µs)"
    yield f"direct 2 ({r.us(*small, direct):.1f} µs)"
    yield f"at {5e-6 * 50e9 / (2 * 31 / 16 - 5 + 4.1875) / 2**10:.0f} KiB (alpha = 1 µs, two links)"
    for size in ("64 KiB", "256 KiB"):
        yield f"{r.us('switch', size, rd):.1f} and {r.us('switch', size, hd):.1f} µs at {size}"
    most = [r.ms(*large, each) for each in (direct, hd, ring)]
    yield f"meet at {min(most):.1f} to {max(most):.1f} ms for 256 MiB"
    yield f"({r.share(*large, ring):.1f} to {r.share(*large, direct):.0f} % of the bound)"
    yield f"Trees in 16 chunks reach {r.share(*large, trees):.0f} %, recursive_doubling {r.share(*large, rd):.0f} %"
    times = r.us("ring", "256 MiB", hd) / r.us("ring", "256 MiB", ring)
    yield f"from 256 KiB on the ring algorithm is best, and at 256 MiB halving_doubling takes {times:.1f} times as long"
    yield "On a switch few steps win below 80 KiB"
    yield "the ring algorithm wins from 256 KiB on"
    sizes = ("1 KiB", "16 KiB", "64 KiB", "256 KiB", "1 MiB", "16 MiB", "256 MiB")
    assert {r.best("switch", size, None) for size in sizes} == {direct}
    assert [r.best("ring", size, None) == ring for size in sizes] == [False] * 3 + [True] * 4


@claims("sweep.size=[64 KiB, 1 GiB]", "engine=compiled")
def ring_vs_torus(r: Rows):
    def slow(topology: str, size: str, model: str = "cut_through", placement: str = "linear") -> float:
        return r.us(topology, size, model, placement) / r.us("ring", size, "cut_through", "linear")

    shapes = ("torus_2d", "torus_3d", "hypercube", "mesh_2d")
    ring = [r.us("ring", size, "cut_through", "linear") for size in ("64 KiB", "1 GiB")]
    yield f"{ring[0]:.1f} µs at 64 KiB, {ring[1] / 1e3:.1f} ms at 1 GiB"
    snakes = {
        slow(shape, "1 GiB", model, "snake") for shape in shapes[:3] for model in ("cut_through", "store_and_forward")
    }
    yield f"the slowdown is {max(snakes):.3f} at every size"
    shares = [r.share(shape, "1 GiB", "cut_through", "snake") for shape in ("torus_3d", "ring")]
    yield f"bound/time in the table: {shares[0]:.0f} % of 3-D torus, {shares[1]:.0f} % of ring"
    stored = [slow(shape, "1 GiB", "store_and_forward") for shape in shapes]
    yield f"slowdown {stored[0]:.2f}, {stored[1]:.2f}, {stored[2]:.2f} and {stored[3]:.1f} at every size"
    few = [slow(shape, "64 KiB") for shape in shapes]
    yield f"not the bytes: {few[0]:.2f}, {few[1]:.2f}, {few[2]:.2f} and {few[3]:.1f} at 64 KiB"
    yield f"but {listed((slow(shape, '1 GiB') for shape in shapes), '.3f')} at 1 GiB"
    switch = [slow("switch", size, "store_and_forward") for size in ("64 KiB", "1 GiB")]
    yield f"{switch[0]:.2f} at 64 KiB, {switch[1]:.2f} at 1 GiB"
    yield "2 hops on an 8×8 torus, 3 on 4×4×4, 6 on a hypercube. Along a snake the factor is 1"
    assert [round(each) for each in stored] == [2, 3, 6, 14] and min(snakes) == 1
    assert slow("mesh_2d", "1 GiB", "store_and_forward", "snake") == pytest.approx(7)
    assert r.us("switch", "1 GiB", "cut_through", "linear") == ring[1]


@claims()
def all_to_all_torus(r: Rows):
    names = {"ring": "ring", "mesh": "mesh_2d", "2-D torus": "torus_2d", "switch": "switch", "3-D torus": "torus_3d"}
    bus = {name: r.bus(shape, "256 MiB", "direct") for name, shape in names.items()}
    yield f"direct at 256 MiB: {', '.join(f'{name} {rate:.1f}' for name, rate in bus.items())} GB/s"
    share = {name: r.share(shape, "256 MiB", "direct") for name, shape in names.items()}
    yield f"switch reach {share['ring']:.0f} to {share['switch']:.0f} % of their bound"
    yield f"the tori {share['2-D torus']:.0f} and {share['3-D torus']:.0f} %"
    yield f"{r.share('torus_2d', '256 MiB', 'pairwise'):.0f} % of the bound on the 2-D torus"
    small = {name: r.us("switch", "64 KiB", name) for name in ("direct", "pairwise", "bruck")}
    yield (
        f"as good as direct at 256 MiB and {small['pairwise'] / small['direct']:.0f} times slower at 64 KiB "
        "(63 latencies"
    )
    yield (
        f"instead of 63, but moves every block 3 times on average: {small['pairwise'] / small['bruck']:.1f} "
        "times faster"
    )
    large = r.us("switch", "256 MiB", "bruck") / r.us("switch", "256 MiB", "pairwise")
    yield f"on the switch at 64 KiB, {large:.0f} times slower at 256 MiB"
    rates = f"{bus['ring']:.0f} GB/s, a 2-D torus {bus['2-D torus']:.0f}, a switch {bus['switch']:.0f}"
    yield f"At 256 MiB a ring reaches {rates}, a 3-D torus {bus['3-D torus']:.0f}"


@claims(
    "sweep.size=[256 MiB]",
    "sweep.algorithm=direct",
    "sweep.topology=[torus_2d, torus_3d]",
    "topologies.torus_2d.routing={ecmp: true}",
    "topologies.torus_3d.routing={ecmp: true}",
)
def all_to_all_torus_hashed(r: Rows):
    yield (
        f"helps a little: {listed((r.bus(each, '256 MiB', 'direct') for each in ('torus_2d', 'torus_3d')), '.1f')} GB/s"
    )


@claims("engine=compiled")
def hierarchical_dgx(r: Rows):
    two, eight, wrong = (
        f"{r.bus('1 GiB', each):.0f}" for each in ("hierarchical", "hierarchical 8 chunks", "wrong way round")
    )
    flat = r.bus("1 GiB", "ring")
    yield f"busbw {flat:.1f} GB/s at 1 GiB"
    yield f"{two} GB/s, {r.bus('1 GiB', 'hierarchical') / flat:.1f} times the flat ring"
    yield (
        f"Cut into 8 chunks they overlap: {eight} GB/s, {r.share('1 GiB', 'hierarchical 8 chunks'):.0f} % of the bound"
    )
    cut, whole = r.us("1 MiB", "hierarchical 8 chunks"), r.us("1 MiB", "hierarchical")
    yield (
        f"At 1 MiB the same cut costs {cut / whole:.1f} times as much ({cut:.0f} against {whole:.1f} µs): 8 "
        "times the messages"
    )
    yield f"sends twice as much over the NICs: {wrong} GB/s"
    yield f"is best: {r.us('64 KiB', 'halving_doubling'):.1f} µs against {r.us('64 KiB', 'ring'):.0f} µs of the ring"
    yield (
        f"uses one NIC of each node, {flat:.1f} GB/s. Hierarchical uses all eight, {two} GB/s, and {eight} "
        "when its phases overlap in 8 chunks"
    )
    assert r.best("64 KiB", None) == "halving_doubling"


@claims()
def themis(r: Rows):
    one = r.share("even", "256 MiB", "1", "fixed")
    yield f"two thirds of the links idle: {one:.0f} % of the bound, whatever the order"
    fixed, spread = (
        [r.ms("even", "256 MiB", chunks, order) for chunks in ("4", "16")] for order in ("fixed", "themis")
    )
    shares = sorted(r.share("even", "256 MiB", chunks, "fixed") for chunks in ("4", "16"))
    assert f"{fixed[0]:.1f}" == f"{fixed[1]:.1f}"
    yield f"{fixed[0]:.1f} ms for 256 MiB with 4 chunks and with 16, {shares[0]:.0f} to {shares[1]:.0f} % of the bound"
    times = fixed[1] / spread[1]
    yield (
        f"{spread[0]:.1f} ms with 4 chunks, {spread[1]:.1f} ms with 16, "
        f"{r.share('even', '256 MiB', '16', 'themis'):.0f} % of the bound and {times:.2f} times as fast"
    )
    yield "of 1 MiB, 16 chunks take longer than one"
    yield f"With equal dimensions and 16 chunks Themis is {times:.2f} times as fast"
    assert all(
        r.us("tapered", "256 MiB", c, "fixed") == r.us("tapered", "256 MiB", c, "themis") for c in ("1", "4", "16")
    )
    assert all(
        r.us(shape, "1 MiB", "16", order) > r.us(shape, "1 MiB", "1", order)
        for shape in ("even", "tapered")
        for order in ("fixed", "themis")
    )


@claims()
def in_network(r: Rows):
    gpus = ("4 GPUs", "8 GPUs", "16 GPUs")
    ring, trees, switch, few, many = (
        "ring",
        "trees, 16 chunks",
        "switch_tree, 64 chunks",
        "nvls, 4 rounds",
        "nvls, 64 rounds",
    )
    small = {each: [r.us(n, "1 KiB", each) for n in gpus] for each in (ring, trees, switch, few, many)}
    yield f"{listed(small[ring], '.1f')} µs at 1 KiB; pairs of trees {listed(small[trees], '.1f')} µs"
    yield f"to the switch and back, {max(small[switch]):.1f} µs however many GPUs"
    yield f"nvls takes {max(small[few]):.1f} µs in 4 rounds, but {max(small[many]):.0f} µs in 64"
    nvls, rings = ([r.ms(n, "1 GiB", each) for n in gpus] for each in (many, ring))
    yield f"At 1 GiB nvls in 64 rounds takes {listed(nvls, '.2f')} ms, the ring {listed(rings, '.2f')}"
    gains = [b / a for a, b in zip(nvls, rings, strict=True)]
    assert 0.97 < gains[0] < 1
    yield f"with 4 GPUs the switch gains nothing, with 8 {gains[1]:.2f} times, with 16 {gains[2]:.2f} times"
    yield "up to 4 MiB 4 of them are best, from 64 MiB on 64"
    sizes = ("1 KiB", "16 KiB", "256 KiB", "4 MiB", "64 MiB", "1 GiB")
    assert all((r.us(n, s, few) < r.us(n, s, many)) == (s not in sizes[4:]) for n in gpus for s in sizes)
    assert {r.best(n, size, None) for n in gpus for size in sizes} == {switch}
    yield f"({r.ms('8 GPUs', '1 GiB', switch):.2f} ms at 1 GiB)"
    yield f"at 1 GiB it gains nothing on 4 GPUs, {gains[1]:.2f} times on 8, {gains[2]:.2f} times on 16"


@claims("engine=compiled")
def hgx_h100(r: Rows):
    stored, through = "store_and_forward", "cut_through"
    yield f"1 MiB on 8 GPUs takes {r.us('8', stored, '1 MiB'):.1f} µs"
    yield (
        "for each of 2 turns of 2 chunks; 8 GPUs take "
        f"{r.us('8', stored, '1 MiB') / r.us('2', stored, '1 MiB'):.1f} times as long as 2"
    )
    yield f"busbw is {r.bus('8', stored, '1 GiB'):.0f} GB/s with 8 GPUs, and {r.bus('2', stored, '1 GiB'):.0f} with 2"
    yield "reaches the bound from 16 MiB (2 GPUs) or 64 MiB (8 GPUs) on"
    assert min(r.share("2", through, "16 MiB"), r.share("8", through, "64 MiB")) > 99.9
    assert max(r.share("2", through, "4 MiB"), r.share("8", through, "16 MiB")) < 90
    yield f"and {r.bus('8', through, '1 GiB'):.0f} GB/s, the rate of a link"
    yield (
        f"At 1 MiB latency: 8 GPUs take {r.us('8', stored, '1 MiB') / r.us('2', stored, '1 MiB'):.1f} times as "
        "long as 2"
    )
    yield "With cut-through all reach the rate of a link at 1 GiB"
    assert all(r.bus(n, through, "1 GiB") == pytest.approx(400 * 2**30 / 1e9, rel=0.001) for n in ("2", "4", "8"))


@claims()
def find_the_bug(r: Rows):
    assert (
        len({tuple(r.us(s, each) for s in ("1 KiB", "1 MiB", "64 MiB")) for each in ("right", "wrong_sum", "race")})
        == 1
    )
    yield (
        f"{r.us('1 KiB', 'right'):.3f} µs at 1 KiB, {r.us('1 MiB', 'right'):.2f} µs at 1 MiB, "
        f"{r.ms('64 MiB', 'right'):.3f} ms at 64 MiB"
    )
    yield f"is the fastest at 64 MiB ({r.ms('64 MiB', 'deadlock'):.3f} ms)"
    assert r.best("64 MiB", None) == "deadlock"
    yield "the one that can deadlock is the fastest at 64 MiB"


@claims(marks=pytest.mark.nightly)
def synthesized(r: Rows):
    ours, large = "synthesized", "256 MiB"
    known = ("ring", "direct", "halving_doubling", "tree", "ring both ways", "hierarchical")

    def times(topology: str) -> float:
        return min(r.us(topology, large, one) for one in known) / r.us(topology, large, ours)

    torus = {one: r.ms("torus", large, one) for one in (*known, ours)}
    yield f"Torus: synthesized {torus[ours]:.2f} ms, the bound; a ring in both directions uses half of the links"
    yield f"takes {torus['ring both ways']:.2f} ms, in one direction {torus['ring']:.1f} ms"
    fast = [r.ms("hetero_torus", large, one) for one in (ours, "hierarchical")]
    yield f"With axes of two speeds {fast[0]:.2f} against {fast[1]:.1f} ms of hierarchical"
    yield (
        f"Mesh and faulty mesh: {times('mesh'):.1f} and {times('faulty_mesh'):.1f} times as fast as the best known one"
    )
    dgx = min(r.ms("dgx1", large, one) for one in known)
    yield f"not a ring at all in rank order; {r.ms('dgx1', large, ours):.1f} ms against {dgx:.1f} ms"
    assert r.us("switches", large, ours) == r.us("switches", large, "ring both ways")
    small = [r.us("switches", "64 KiB", one) for one in (ours, "direct")]
    yield f"At 64 KiB it takes {small[0]:.1f} µs against {small[1]:.1f} µs of direct"
    middle = [r.us("switches", "1 MiB", one) for one in (ours, "tree")]
    yield f"at 1 MiB {middle[0]:.1f} µs against {middle[1]:.1f} µs of the tree"
    yield f"On a mesh with failed links it is {times('faulty_mesh'):.1f} times as fast as the best known one"
    assert torus[ours] / torus["ring both ways"] == pytest.approx(0.5, abs=0.01)
    assert r.share("torus", large, ours) > 99.9


@claims(marks=pytest.mark.nightly)
def real_machines(r: Rows):
    small, large = "1 KiB", "4 GiB"
    bus = {key: r.bus(*key) for key in r.rows}
    bound = bus["links", large, "ring"] * 100 / r.share("links", large, "ring")
    yield f"busbw {bus['links', large, 'ring']:.0f} GB/s, a tenth of the bound of {bound:.0f}"
    tree, ring = r.us("links", small, "tree"), r.ms("links", small, "ring")
    yield f"{tree:.0f} µs for 1 KiB, not {ring:.1f} ms as the ring"
    yield f"but uses one NIC, too: {bus['links', large, 'tree']:.0f} GB/s"
    yield f"takes turns on NVLink and NICs: {bus['links', large, 'hierarchical']:.0f} GB/s"
    yield f"eight rings, one for each NIC: {bus['links', large, 'nccl']:.0f} GB/s"
    costs = r.us("library", small, "nccl"), r.us("links", small, "nccl")
    yield f"1 KiB takes {costs[0]:.0f} µs instead of {costs[1]:.0f}"
    yield f"and 4 GiB reaches {bus['library', large, 'nccl']:.0f} GB/s"
    yield f"trees in pieces, {bus['library', '64 MiB', 'nccl']:.0f} GB/s"
    made = r.us("library", small, "synthesized"), r.us("links", small, "synthesized")
    yield f"synthesized takes {made[0]:.0f} µs for 1 KiB instead of {made[1]:.0f}"
    yield f"still the fastest: {bus['library', large, 'synthesized']:.0f} GB/s of 4 GiB"
    assert r.best("library", large, None) == "synthesized" and r.best("library", small, None) != "synthesized"
    rates = bus["links", large, "ring"], bus["links", large, "nccl"], bus["library", large, "nccl"]
    yield f"A flat ring reaches {rates[0]:.0f} GB/s, one NIC of eight. NCCL's choice reaches {rates[1]:.0f} GB/s"
    yield f"on bare links, and {rates[2]:.0f} with the costs of a library"
