"""Claims of scenarios about training steps, networks and jobs: what runs must show of the numbers in their texts."""

from __future__ import annotations

from statistics import geometric_mean

import pytest
from worlds.claims import Rows, claims, listed


@claims("engine=compiled")
def ddp_overlap(r: Rows):
    one, two, four = (r.exposed("50 GB/s", each) / 1e3 for each in ("one", "two", "four"))
    yield f"At 50 GB/s 4 ms of compute and {one:.2f} ms of exposed communication"
    yield f"{two:.2f} and {four:.2f} ms exposed. The last bucket can never hide"
    alone, before, after = r.exposed("25 GB/s", "one") / 1e3, r.ms("25 GB/s", "one"), r.ms("25 GB/s", "four")
    yield (
        f"communication alone takes {alone:.1f} ms, so buckets only take away what compute hides: {before:.1f} "
        f"ms becomes {after:.1f} ms"
    )
    yield f"and then {after - 1:.1f} ms of network without a pause"
    yield f"all but the last one hides: {r.exposed('100 GB/s', 'four') / 1e3:.2f} ms exposed"


@claims("engine=compiled")
def failures(r: Rows):
    calm = {
        (t, m): r.ms(t, m, "none")
        for t in ("healthy", "link_down", "link_slow")
        for m in ("cut_through", "store_and_forward")
    }
    healthy, down = calm["healthy", "cut_through"], calm["link_down", "cut_through"]
    yield f"{healthy:.2f} ms becomes {down:.2f} ms"
    yield f"the bytes are sent three times, {calm['link_down', 'store_and_forward']:.2f} ms"
    yield f"all 30 steps wait for it: {calm['link_slow', 'cut_through']:.1f} ms"
    late = "one at half speed"
    yield (
        "(NPU at half speed, 1 ms late) delays a healthy ring by exactly its "
        f"{r.ms('healthy', 'cut_through', late) - healthy:.0f} ms: {r.ms('healthy', 'cut_through', late):.2f} "
        "ms"
    )
    assert r.ms("link_slow", "cut_through", late) == calm["link_slow", "cut_through"]
    yield f"A failed one costs {100 * (down / healthy - 1):.1f} % with cut-through"


@claims()
def link_flap(r: Rows):
    calm, never = r.ms("no flap", "10 us"), r.ms("never", "10 us")
    yield f"({calm:.1f} ms without the flap)"
    yield f"Never repaired: {never:.0f} ms with a delay of 10 µs"
    yield f"each all-reduce takes {2 * (calm - 15) / 3:.0f} ms instead of {(calm - 15) / 3:.1f} ms"
    yield f"{r.ms('never', '10 ms'):.0f} ms with 10 ms"
    yield f"{r.ms('1 ms', '1 ms'):.1f} ms with a delay of 1 ms and {r.ms('1 ms', '10 ms'):.1f} ms with 10 ms"
    yield f"repaired after 1 ms, a delay of 10 µs still costs {r.ms('1 ms', '10 us'):.0f} ms, more than one of 10 ms"
    yield "A repair after 27 ms finds the NPUs computing (delays of 10 µs and 1 ms)"
    yield f"one of three all-reduces has been slow: {r.ms('27 ms', '1 ms'):.0f} ms"
    yield f"before the reroute ({r.ms('1 ms', '1 ms'):.1f} ms)"
    yield f"or between two messages ({r.ms('27 ms', '1 ms'):.0f} ms)"
    yield f"After the reroute it comes too late: {r.ms('1 ms', '10 us'):.0f} ms"


@claims()
def fair_or_fifo(r: Rows):
    cut = [r.ms("cut_through", chunks) for chunks in ("1", "16", "100")]
    shared = {r.ms("fluid", chunks) for chunks in ("1", "16", "100")}
    yield f"{cut[0]:.0f} ms with 1 message a step, {cut[1]:.1f} ms with 16 and {cut[2]:.1f} ms with 100"
    yield f"fluid: {max(shared):.0f} ms, however they are cut"
    yield f"alone each takes {6 * (10 + 500 / 50):.0f} ms"
    yield f"Shared, two jobs take {max(shared):.0f} ms however their messages are cut"
    yield f"the answer depends on the cut: {cut[0]:.0f} to {cut[2]:.1f} ms"
    assert len(shared) == 1


@claims("engine=compiled")
def open_loop(r: Rows):
    sent = {pattern: r.rows[pattern, "0.8", "fluid"].messages for pattern in ("uniform", "incast")}
    yield f"{sent['uniform']:,} messages are sent"
    yield f"the load is that of its link: {sent['incast']} messages"


@claims("engine=compiled")
def noisy_neighbour(r: Rows):
    quiet, busy = "quiet neighbour", "busy neighbour"
    packed, spread = ("packed", "rest"), ("spread", "between")
    alone = r.ms("1", quiet, *packed)
    assert alone == r.ms("1", busy, *packed) == r.ms("1", quiet, *spread)
    yield f"{alone:.2f} ms with and without the neighbour"
    beside = [r.ms(each, busy, *spread) for each in ("1", "2", "4")]
    yield f"{alone:.2f} ms alone, {beside[0]:.2f} ms beside the neighbour"
    yield f"With 2:1 it is {beside[1]:.2f} ms, with 4:1 {beside[2]:.2f} ms"
    yield f"4:1 doubles even the quiet all-reduce ({r.ms('4', quiet, *packed):.2f} ms): an uplink then has 25 GB/s"
    yield f"takes {100 * (beside[0] / alone - 1):.0f} % longer"


@claims()
def neighbours_over_time(r: Rows):
    shifts = ("0 ms", "5 ms", "10 ms")
    fluid, many, one = (
        [r.ms(model, c, s) for s in shifts]
        for model, c in (("fluid", "16"), ("cut_through", "16"), ("cut_through", "1"))
    )
    assert fluid == [r.ms("fluid", "1", shift) for shift in shifts]
    yield f"fluid, where messages share the uplink: {listed(fluid, '.0f')} ms"
    yield f"a slowdown of {fluid[0] / 120:.1f}. Half out of phase (5 ms) they overlap half: {(fluid[1] - 5) / 120:.2f}"
    yield f"with 16 chunks {listed(many, '.0f')} ms, with one chunk {listed(one, '.0f')} ms"


@claims()
def from_pytorch(r: Rows):
    slow = {(step, rate): r.ms(step, rate) / r.ms(step, "10 Gb/s") for step, rate in r.rows}
    fast = [r.ms(step, "10 Gb/s") for step in ("ddp", "fsdp", "pipeline")]
    yield f"10 Gb/s: {listed(fast, ',.0f')} ms"
    gigabit = [100 * (slow[step, "1 Gb/s"] - 1) for step in ("ddp", "fsdp", "pipeline")]
    yield f"1 Gb/s: DDP takes {gigabit[0]:.0f} % more"
    yield f"FSDP {gigabit[1]:.0f} %, for it waits for every gather; the pipeline {gigabit[2]:.1f} %"
    least = 100 * (slow["pipeline", "100 Mb/s"] - 1)
    yield f"100 Mb/s: DDP {slow['ddp', '100 Mb/s']:.1f} times as long, FSDP twice, the pipeline {least:.1f} % longer"
    yield (
        f"At 1 Gb/s DDP takes {gigabit[0]:.0f} % longer and FSDP {gigabit[1]:.0f} %, at 100 Mb/s "
        f"{slow['ddp', '100 Mb/s']:.1f} times"
    )
    assert slow["fsdp", "100 Mb/s"] == pytest.approx(2, abs=0.05)


@claims(marks=pytest.mark.slow)
def step_at_scale(r: Rows):
    key = lambda state, nodes, mbs: (state, str(nodes), str(mbs), "1.34B")  # noqa: E731
    seconds = lambda *point: r.s(*key(*point))  # noqa: E731
    one, most = ("sound", 1, 2), ("sound", 64, 2)
    yield f"from {seconds(*one):.1f} s on one sound node to {seconds(*most):.2f} s on 64"
    parts = {point: r.summaries[key(*point)]["breakdown"] for point in (one, most, ("sound", 1, 16))}
    waits = [100 * float(of["other_ns"]) / 1e9 / seconds(*point) for point, of in parts.items()]
    yield f"waiting is {waits[0]:.0f} % of it on one node, {waits[1]:.0f} % on 64"
    yield f"and waiting is {waits[2]:.0f} %"
    exposed = [100 * r.exposed(*key(*point)) / 1e6 / seconds(*point) for point in (one, most)]
    yield f"exposed communication is {exposed[0]:.0f} % on one node, {exposed[1]:.0f} % on 64"
    slower = [seconds("degraded", 1, mbs) / seconds("sound", 1, mbs) for mbs in (2, 16)]
    yield f"{slower[0]:.1f} times as long with mbs 2, {slower[1]:.1f} times with mbs 16"
    yield f"which takes {slower[0]:.1f} times as long"
    sound = {(2, 2): 4.96, (16, 2): 0.665, (32, 2): 0.372, (1, 16): 4.66, (2, 16): 2.35, (16, 16): 0.316}
    degraded = {(64, 2): 1.36, (4, 16): 1.47, (8, 16): 0.977}
    ratios = [
        [100 * time / seconds(state, *point) for point, time in of.items()]
        for state, of in (("sound", sound), ("degraded", degraded))
    ]
    least, largest = (tuple(f"{end(of):.0f}" for of in ratios) for end in (min, max))
    yield f"at {least[0]} to {largest[0]} % of the simulated time on sound machines, at {least[1]} to {largest[1]} %"


@claims()
def parallelism(r: Rows):
    spans, waits = ({key[0]: value(*key) for key in r.rows} for value in (r.s, lambda *key: r.exposed(*key) / 1e6))
    yield f"over NICs of 25 GB/s: {waits['dp 32']:.2f} s exposed, half of the step"
    yield f"(overlap) {waits['dp 32, overlap']:.2f} s stay"
    yield f"an eighth of the gradients: {waits['tp 8']:.2f} s exposed"
    yield f"25 in place of 300 GB/s: {spans['tp 16']:.1f} s, {spans['tp 16'] / spans['tp 8']:.1f} times tp 8"
    yield (
        f"logits as well: {spans['pp 8']:.2f} s. Two chunks a rank (vp 2) halve the bubble: {spans['pp 8 vp 2']:.2f} s"
    )
    yield f"tp 2 pp 4, a little of each, is best: {spans['tp 2 pp 4']:.3f} s"
    yield f"tensor parallelism beyond a node takes {spans['tp 16'] / spans['tp 8']:.1f} times as long as inside"
    assert min(spans, key=spans.get) == "tp 2 pp 4" and 0.45 < waits["dp 32"] / spans["dp 32"] < 0.5


@claims()
def memory_or_network(r: Rows):
    nics, kept = ("12.5 GB/s", "25 GB/s", "50 GB/s", "100 GB/s"), ("250 GB/s", "500 GB/s", "1 TB/s")
    cut = {nic: r.s(nic, "3", "local memory") for nic in nics}
    held = {(nic, rate): r.s(nic, "1", f"expanded, {rate}") for nic in nics for rate in kept}
    waits = {nic: r.exposed(nic, "3", "local memory") / 1e6 for nic in nics}
    slow, faster = "12.5 GB/s", "25 GB/s"
    yield (
        f"ZeRO 3 takes {cut[slow]:.0f} and {cut[faster]:.1f} s, of which {waits[slow]:.0f} and "
        f"{waits[faster]:.0f} s are exposed"
    )
    yield f"at 12.5 GB/s the one of 250 GB/s by nearly half ({held[slow, '250 GB/s']:.0f} s)"
    yield f"ZeRO 3 is best: {cut['50 GB/s']:.1f} s"
    work = [held["100 GB/s", rate] - r.exposed("100 GB/s", "1", f"expanded, {rate}") / 1e6 for rate in kept]
    yield f"{listed(work, '.1f')} s of it in place of {cut['100 GB/s'] - waits['100 GB/s']:.1f}"
    most = max(held[slow, rate] / held["100 GB/s", rate] for rate in kept)
    yield f"worth {cut[slow] / cut['100 GB/s']:.1f} times to ZeRO 3, and {most:.2f} times at most to those with memory"
    yield f"1 TB/s, {held[faster, '1 TB/s']:.1f} s"
    yield "Below 50 GB/s of NIC expanded memory wins; from there on ZeRO 3 does"
    assert all((span < cut[nic]) == (nic in (slow, faster)) for (nic, _), span in held.items())


@claims(marks=pytest.mark.nightly)
def comet_dlrm(r: Rows):
    rates = ("250 GB/s", "500 GB/s", "1 TB/s")
    eight, four, one = ([r.ms(nodes, rate) for rate in rates] for nodes in ("8", "4", "1"))
    yield f"take {eight[0]:.1f} ms, of which {r.exposed('8', '1 TB/s') / 1e3:.0f} ms are exposed"
    yield f"{four[0]:.0f}, {four[1]:.0f} or {four[2]:.0f} ms with expanded memory of 250 GB/s, 500 GB/s or 1 TB/s"
    yield f"{one[0]:.0f}, {one[1]:.0f} or {one[2]:.0f} ms. The last is {one[2] / eight[2]:.1f} times as long as 64 take"
    yield f"per NPU {8 * eight[2] / one[2]:.2f} times the samples"
    yield f"take {one[2] / eight[2]:.1f} times as long as 64, so each does {8 * eight[2] / one[2]:.2f} times the work"
    assert one[1] > 8 * eight[1] > 4 * four[1]


@claims(marks=pytest.mark.nightly)
def synthesized_training(r: Rows):
    ring, whole, chunks, ours = "ring", "hierarchical", "hierarchical 4 chunks", "synthesized"
    step = {key[:3]: r.ms(*key) for key in r.rows}
    waits = {key[:3]: r.exposed(*key) / 1e3 for key in r.rows}
    few, many, mixed = ("mesh", "1024 tokens"), ("mesh", "4096 tokens"), ("hetero_torus", "1024 tokens")
    yield f"With 1024 tokens a step on the mesh takes {step[*few, ours]:.1f} ms instead of {step[*few, ring]:.1f}"
    yield f"either way: {step[*many, ours]:.1f} and {step[*many, ring]:.1f} ms"
    yield f"at the speed of its slowest link, {step[*mixed, ring]:.1f} ms at 1024 tokens"
    said = f"over slow links, {step[*mixed, whole]:.1f}, in 4 chunks {step[*mixed, chunks]:.1f}; synthesized"
    yield f"{said} {step[*mixed, ours]:.1f}, with {waits[*mixed, ours]:.1f} ms exposed"
    faulty = ("faulty_mesh", "1024 tokens")
    yield f"meet on the detours, {step[*faulty, whole]:.1f} ms; synthesized {step[*faulty, ours]:.1f}"
    cases = sorted({key[:2] for key in step})
    known = {key[2] for key in step} - {ours}

    def gain(names) -> float:
        return geometric_mean(min(step[*case, name] for name in names) / step[*case, ours] for case in cases)

    yield f"{gain([ring]):.2f} times as fast a step as with the ring in the geometric mean"
    yield f"over all nine, {gain([whole]):.2f} times as with hierarchical"
    yield f"{gain(known):.2f} times as with the best of the four others"
    assert all(step[*case, ours] < min(step[*case, name] for name in known) for case in cases)
    yield f"with 1024 tokens a step on the mesh takes {step[*few, ours]:.1f} ms in place of {step[*few, ring]:.1f}"
    yield "with 4096 tokens next to nothing changes"


@claims(marks=pytest.mark.nightly)
def synthesized_training_256(r: Rows):
    ours, whole = "synthesized", "hierarchical"
    step = {(key[0], key[2]): r.ms(*key) for key in r.rows}
    waits = {(key[0], key[2]): r.exposed(*key) / 1e3 for key in r.rows}
    yield f"15 latencies; {step['mesh', 'ring']:.0f} ms a step"
    said = f"Hierarchical takes {step['mesh', whole]:.0f}, in 4 chunks {step['mesh', 'hierarchical 4 chunks']:.0f}"
    yield f"{said}, synthesized {step['mesh', ours]:.1f}, with {waits['mesh', ours]:.1f} ms exposed"
    mixed = "hetero_torus"
    yield f"hierarchical has only {waits[mixed, whole]:.1f} ms exposed"
    yield f"little is left to gain: {step[mixed, ours]:.1f} instead of {step[mixed, whole]:.1f} ms"
    known = min(ms for (topology, name), ms in step.items() if topology == "faulty_mesh" and name != ours)
    yield f"cost the known algorithms {known:.0f} ms and more; synthesized {step['faulty_mesh', ours]:.0f}"


@claims(marks=pytest.mark.nightly)
def comet_transformer_1t(r: Rows):
    span = {key[1:]: r.s(*key) for key in r.rows}
    off = {key[1:]: r.off(*key) for key in r.rows}
    for rings, said in (("flat", "s at MP 1, 8 and 64"), ("by node", "s")):
        one, eight, most = (span[plan, rings, "endless"] for plan in ("MP 1", "MP 8", "MP 64"))
        yield f"{one:.1f}, {eight:.1f} and {most:.0f} {said}"
    assert min(("MP 1", "MP 8", "MP 64"), key=lambda plan: span[plan, "flat", "endless"]) == "MP 8"
    assert min(("MP 1", "MP 8", "MP 64"), key=lambda plan: span[plan, "by node", "endless"]) == "MP 1"
    beside = [span["MP 8", "by node", f"{rate} beside"] for rate in ("500 GB/s", "1 TB/s")]
    yield f"{beside[0]:.1f} s at MP 8 with 500 GB/s, {beside[1]:.1f} s with 1 TB/s"
    times = [span["MP 64", "by node", "endless"] / each for each in beside]
    yield f"{times[0]:.1f} and {times[1]:.1f} times as fast as MP 64"
    least = span["MP 1, ZeRO 3", "by node", "endless"]
    yield f"ZeRO 3 at MP 1 fits 80 GB and takes {least:.1f} s: less than all of these"
    assert least < min(each for key, each in span.items() if "beside" in key[2] and "ZeRO 3" not in key[0])
    worst = [off["MP 64", rings, "endless"] for rings in ("by node", "flat")]
    yield f"up to {worst[0]:.0f} s by node, {worst[1]:.0f} s flat"
    yield f"exact, but for {off['MP 1', 'flat', 'endless']:.1f} s of MP 1 flat"
    exact = (("MP 1", "by node"), ("MP 8", "flat"), ("MP 8", "by node"), ("MP 1, ZeRO 3", "by node"))
    assert not any(off[*pair, "endless"] for pair in exact)


@claims(marks=pytest.mark.nightly)
def comet_clusters(r: Rows):
    span, off, waits = ({} for _ in range(3))
    for key in r.rows:
        name, plan = key[1], key[4]
        span[name, plan], off[name, plan], waits[name, plan] = r.s(*key), r.off(*key), r.exposed(*key) / 1e6
    names = {"A100": "A100 take", "H100": "H100", "H200": "H200", "MI300X": "MI300X", "B200": "B200"}
    names |= {"GB200": "GB200 NVL72", "TPU-v5p": "TPU v5p"}
    times = [f"{said} {span[name, 'MP 8']:.1f} s" for name, said in names.items()]
    yield f"At MP 8 {', '.join(times[:-1])} and {times[-1]}"
    gain = {name: span["A100", "MP 8"] / span[name, "MP 8"] for name in names}
    yield f"So H100 are {gain['H100']:.1f} times as fast as A100, H200 {gain['H200']:.1f}, MI300X {gain['MI300X']:.1f}"
    yield f"B200 {gain['B200']:.1f}, GB200 {gain['GB200']:.1f} and TPU v5p {gain['TPU-v5p']:.1f} times"
    small = ("A100", "H100", "H200", "GB200")
    yield f"A100, H100, H200 and GB200 take {listed((span[name, 'MP 2'] for name in small), '.1f')} s"
    more = [off[name, "MP 2"] for name in small]
    yield f"up to {more[0]:.0f}, {more[1]:.0f}, {more[2]:.0f} and {more[3]:.1f} s more"
    yield f"GB200 at MP 8 up to {off['GB200', 'MP 8']:.1f} s more"
    assert {name for name in names if off[name, "MP 8"]} == {"GB200", "TPU-v5p"}
    yield f"at MP 2 {waits['B200', 'MP 2']:.1f} s of gathers over NICs are exposed"
    yield f"one dimension's links at a time: {waits['TPU-v5p', 'MP 8']:.0f} s are exposed"
    said = f"H100 are {gain['H100']:.1f} times as fast as A100, B200 {gain['B200']:.1f} times"
    yield f"{said}, GB200 {gain['GB200']:.1f} times"


@claims(marks=pytest.mark.nightly)
def comet_break_even(r: Rows):
    span = {name: r.s(name, *more) for name, *more in r.rows}
    off = {name: r.off(name, *more) for name, *more in r.rows}
    enough, placed, two = "80 GB are enough", "1 TB/s, placed", "ZeRO 3 in 80 GB, MP 2"
    assert {name for name in off if off[name]} == {enough, placed, two}
    yield f"fits 80 GB: {span[enough]:.0f} s, more than half of it exposed"
    yield f"would take at most {off[enough]:.0f} s ({100 * off[enough] / span[enough]:.0f} %) more"
    # The time is linear in the reciprocal of the bandwidth.
    slope = (span["45 GB/s"] - span["50 GB/s"]) / (1 / 45 - 1 / 50)
    least, most = (
        1 / (1 / 50 + (time - span["50 GB/s"]) / slope) for time in (span[enough] + off[enough], span[enough])
    )
    yield (
        f"With 45 GB/s it takes {span['45 GB/s']:.0f} s, with 50 GB/s {span['50 GB/s']:.0f} s: it breaks even "
        f"at {most:.0f} GB/s"
    )
    yield f"at {least:.0f} GB/s if MP 64 takes as long as it can"
    yield f"100 GB/s: {span['100 GB/s']:.0f} s; 500 GB/s: {span['500 GB/s']:.1f} s; 1 TB/s: {span['1 TB/s']:.1f} s"
    yield f"here {span[enough] / span['1 TB/s']:.1f} times"
    yield f"needs no expanded memory: {span['ZeRO 3 in 80 GB']:.1f} s at MP 1, less than MP 8 has with 1 TB/s"
    for name in (placed, two):
        yield f"{span[name]:.1f} s and at most {off[name]:.0f} s ({100 * off[name] / span[name]:.0f} %) more"
    yield f"It pays from {most:.0f} GB/s on, perhaps from {least:.0f}"
    assert span["ZeRO 3 in 80 GB"] < span["1 TB/s"]


@claims(marks=pytest.mark.nightly)
def packed_or_random(r: Rows):
    packed, seeds = r.s("packed", "1"), ("1", "2", "3", "4", "5", "6")
    longer = [100 * (r.s("random", seed) / r.s("packed", seed) - 1) for seed in seeds]
    yield (
        f"takes {packed:.2f} s packed, and {min(longer):.0f} to {max(longer):.0f} % longer at random, "
        f"{sum(longer) / 6:.0f} % on average"
    )
    waits = [r.exposed("random", seed) / 1e6 for seed in seeds]
    yield (
        f"{r.exposed('packed', '1') / 1e6:.2f} s of communication becomes {min(waits):.1f} to {max(waits):.1f} "
        f"s, behind {packed - r.exposed('packed', '1') / 1e6:.2f} s of compute"
    )
    yield f"The language model takes {min(longer):.0f} to {max(longer):.0f} % longer"
