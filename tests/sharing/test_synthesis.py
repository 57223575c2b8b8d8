"""Synthesis: blocks that are found, workloads that are exact without noise, and valid with it."""

from __future__ import annotations

import json
import os
from dataclasses import replace
from functools import cache
from itertools import chain
from math import isclose
from pathlib import Path

import numpy as np
import pytest
from worlds.training import ByWork, layout_of

from astrasim_py.chakra.et_io import encode_trace
from astrasim_py.chakra.lint import lint
from astrasim_py.chakra.read_workload import read_workload
from astrasim_py.chakra.trace import ExecutionTrace
from astrasim_py.chakra.workload import Workload
from astrasim_py.cli.main import main
from astrasim_py.core.errors import TraceError
from astrasim_py.sharing.learn import learn
from astrasim_py.sharing.motifs import Motif, find_motif
from astrasim_py.sharing.price import Rules, networks, original_of
from astrasim_py.sharing.synthesis_model import SynthesisModel, read_model, write_model
from astrasim_py.sharing.synthesize import Goal, choose, synthesize, totals, with_ranks
from astrasim_py.training.traces import training_workload

MODEL = {"layers": 4, "hidden": 1024, "ffn": 4096, "heads": 8, "vocab": 5120}
LAYOUTS = [{}, {"tp": 2}, {"zero": 3}, {"tp": 2, "pp": 2}, {"pp": 4}]


@cache
def original(*, gbs=16, **keys):
    return original_of(training_workload(layout_of(8, model=MODEL, gbs=gbs, nodes="fine", **keys), ByWork()))


@cache
def learned(**keys):
    return learn(original(**keys))


def kernels(layers: int, *, slow: int = 1) -> ExecutionTrace:
    """A rank alone: a kernel before, so many layers of three, a kernel after; each launched by the host."""
    names = ["embed", *chain.from_iterable([("mm", "norm", "mm")] * layers), "loss"]
    count = len(names)
    host, device = np.arange(count) * 2, np.arange(count) * 2 + 1
    deps = [[*([int(host[k - 1])] if k else [])] if n == 0 else [*([int(device[k - 1])] if k else []), int(host[k])]
            for k in range(count) for n in (0, 1)]  # fmt: skip
    return ExecutionTrace.from_columns(
        node_id=np.arange(2 * count),
        type=4,
        names=[each for name in names for each in ("cpu", name)],
        duration_ps=[1000 * slow * (3 + k % 5 + 7 * n) for k in range(count) for n in (0, 1)],
        is_cpu_op=[1, 0] * count,
        slot_kind=0,
        data_deps=(np.cumsum([0, *map(len, deps)]), np.array([*chain(*deps)], dtype=np.uint64)),
    )


@pytest.mark.parametrize(
    ("keys", "found"),
    [
        ("", None),
        ("abcdef", None),
        ("abab", None),
        ("aaa", Motif(0, 1, 3)),
        ("xyababababz", Motif(2, 2, 4)),
        ("aabaabaabaab", Motif(0, 3, 4)),
        ("abcabcabcdddd", Motif(0, 3, 3)),  # covers nine, not four
    ],
)
def test_a_motif_covers_most_with_three_repeats_or_more(keys, found):
    assert find_motif(keys) == found


def test_motifs_of_random_sequences_are_repeats():
    rng = np.random.default_rng(4)
    for _ in range(50):
        keys = rng.integers(3, size=40).tolist()
        motif = find_motif(keys)
        if motif:
            blocks = [tuple(keys[at : at + motif.period]) for at in range(motif.start, motif.end, motif.period)]
            assert len(blocks) == motif.repeats >= 3 and len(set(blocks)) == 1


def test_kernels_of_a_rank_alone_repeat_by_their_names():
    model = learn(original_of(Workload((kernels(6),))))
    (program,) = model.programs
    assert (len(program.prefix), len(program.block), program.occurrences, len(program.suffix)) == (1, 3, 6, 1)
    assert synthesize(model, None).traces[0].column("duration_ps").sum() == sum(kernels(6).column("duration_ps"))


@pytest.mark.parametrize("keys", LAYOUTS, ids=str)
def test_blocks_in_their_places_take_the_same_time_on_every_network(keys):
    made = synthesize(learned(**keys), None)
    for topology in [*networks(8).values()][1::4]:
        assert Rules().run(made, topology).makespan == Rules().run(original(**keys).workload, topology).makespan


@pytest.mark.parametrize("keys", LAYOUTS, ids=str)
def test_what_is_made_lints_clean_and_takes_the_nominal_time(keys):
    model = learned(**keys)
    made = synthesize(model, np.random.default_rng(3), makespan=Rules().makespan)
    assert not [found for found in lint(made.traces, made.groups) if found.severity != "info"]
    assert isclose(Rules().makespan(made), model.nominal_ps, rel_tol=1e-3)
    for mine, theirs in zip(made.traces, original(**keys).workload.traces, strict=True):
        sizes = [np.maximum(trace.column("comm_size"), 0).sum() for trace in (mine, theirs)]
        assert isclose(*sizes, rel_tol=1e-6)


def test_twice_the_blocks_are_twice_the_calls_of_a_block():
    model = learned(tp=2)

    def calls(repeats: int) -> int:
        made = synthesize(model, np.random.default_rng(1), Goal(repeats=repeats))
        return sum(int((trace.type == 7).sum()) for trace in made.traces)

    block = sum(place.kind == "collective" for place in model.programs[0].block) * len(model.ranks)
    assert [calls(n + 1) - calls(n) for n in (1, 2, 8)] == [block] * 3
    assert calls(model.repeats) == sum(int((trace.type == 7).sum()) for trace in original(tp=2).workload.traces)


def test_factors_multiply_sizes_and_times():
    model = learned(tp=2)
    plain = synthesize(model, None).traces[0]
    more = synthesize(model, None, Goal(size_factor=3.0, compute_factor=2.0)).traces[0]
    assert (more.column("comm_size") == 3 * plain.column("comm_size"))[plain.type == 7].all()
    took = plain.column("duration_ps")
    assert (more.column("duration_ps")[took > 0] == 2 * took[took > 0]).all()


@pytest.mark.parametrize("keys", [{"tp": 2}, {"tp": 2, "pp": 2}], ids=str)
def test_like_ranks_are_learned_once_as_each_alone(keys):
    apart = replace(original(**keys))
    apart.__dict__["like"] = tuple(range(8))
    assert len(set(original(**keys).like)) == keys.get("pp", 1)
    assert learn(apart) == learned(**keys)


def test_other_numbers_of_ranks_grow_groups_across_slabs():
    model = with_ranks(learned(tp=2), 12)
    assert sorted(model.groups.values()) == sorted(
        [*(tuple(range(first, first + 2)) for first in range(0, 12, 2)), *(tuple(range(k, 12, 2)) for k in (0, 1))]
    )
    made = synthesize(learned(tp=2), np.random.default_rng(0), Goal(ranks=12))
    assert made.ranks == 12 and not [f for f in lint(made.traces, made.groups) if f.severity != "info"]
    assert Rules().makespan(made) > 0
    with pytest.raises(TraceError, match="stages of a pipeline"):
        with_ranks(learned(pp=4), 16)


def test_the_workload_with_the_nearest_calls_gets_the_wanted_blocks_bytes_and_compute():
    models = [learned(**keys) for keys in LAYOUTS]
    rng = np.random.default_rng(0)
    for number, model in enumerate(models):
        calls = {kind: (each / 8, size / each) for kind, (each, size) in totals(model).items()}
        found, wanted = choose(models, Goal(calls=calls), rng)
        assert (found, wanted.repeats or 0) == (number, model.repeats)
    has = totals(learned(tp=2))
    more = {kind: (2 * each / 8, 3 * size / each) for kind, (each, size) in has.items()}
    number, wanted = choose(models, Goal(calls=more, compute_ps=7 * 10**10), rng)
    assert number == 1 and wanted.repeats == pytest.approx(2 * models[1].repeats, abs=1)
    made = synthesize(models[1], rng, wanted, Rules().makespan)
    assert Rules().makespan(made, free=True) == pytest.approx(7 * 10**10, rel=1e-6)
    columns = [[trace.column(name) for name in ("comm_size", "coll_size")] for trace in made.traces]
    sizes = sum(np.maximum(np.max(each, axis=0), 0).sum() for each in columns)
    assert sizes == pytest.approx(6 * sum(size for _, size in has.values()), rel=1e-4)
    with pytest.raises(TraceError, match="nothing learned has all_to_all"):
        choose(models, Goal(calls={"all_to_all": (1, 1)}), rng)


@pytest.mark.parametrize(("keys", "more"), [({"pp": 4}, 8), ({"tp": 2, "pp": 2}, 16)], ids=str)
def test_a_pipeline_of_more_micro_batches_takes_what_the_real_one_takes(keys, more):
    """Blocks of the steady state; stages are at different micro-batches."""
    model = learned(gbs=32, **keys)
    made = synthesize(model, None, Goal(repeats=model.repeats + more))
    assert not [found for found in lint(made.traces, made.groups) if found.severity != "info"]
    for topology in [*networks(8).values()][1::3]:
        real = Rules().run(original(gbs=64, **keys).workload, topology).makespan
        assert Rules().run(made, topology, engine="both").makespan == real
    drawn = synthesize(model, np.random.default_rng(3), Goal(repeats=2))
    assert not [found for found in lint(drawn.traces, drawn.groups) if found.severity != "info"]
    assert Rules().run(drawn, [*networks(8).values()][1], engine="both").makespan > 0


def test_of_several_workloads_one_that_can_have_the_ranks_is_taken():
    models = [learned(pp=4), learned(tp=2)]
    assert {choose(models, Goal(ranks=12), np.random.default_rng(seed))[0] for seed in range(9)} == {1}


@pytest.mark.parametrize("keys", [{"tp": 2}, {"pp": 4}], ids=str)
def test_both_engines_run_what_is_made(keys):
    model = learned(**keys)
    made = synthesize(model, np.random.default_rng(2), Goal(repeats=1 if model.repeats else None))
    assert Rules().run(made, [*networks(8).values()][1], engine="both").makespan > 0  # compares every record


def test_a_model_is_read_back_and_has_no_names(tmp_path):
    model = SynthesisModel(workloads=(learned(tp=2), learned(pp=4)))
    path = tmp_path / "model.json"
    path.write_bytes(write_model(model))
    assert read_model(path) == model
    words = {name for trace in original(tp=2).workload.traces for name in trace.names} | set(
        original(tp=2).workload.groups
    )
    assert not [word for word in words if len(word) > 3 and f'"{word}"' in path.read_text()]


@pytest.mark.parametrize(
    ("change", "problem"),
    [
        (
            lambda m: m["workloads"][0]["programs"][0]["block"][1]["steps"][-1].update(waits=[{"back": 0, "ps": [1]}]),
            "one",
        ),
        (lambda m: m["workloads"][0]["ranks"][0].update(program=7), "no program 7"),
        (lambda m: m["workloads"][0]["ranks"][0].update(groups=[]), "lacks a group"),
        (lambda m: m.update(format="other"), "not"),
        (lambda m: m.update(workloads=[]), "fewer"),
        (lambda m: m["workloads"][0]["programs"][0].update(occurrences=9), "one value for each"),
    ],
)
def test_a_wrong_model_is_one_error(tmp_path, change, problem):
    plain = json.loads(write_model(SynthesisModel(workloads=(learned(tp=2),))))
    change(plain)
    path = tmp_path / "model.json"
    path.write_text(json.dumps(plain))
    with pytest.raises(TraceError, match=problem):
        read_model(path)


def test_the_verbs_learn_and_make_the_same_bytes_again(tmp_path, capsys):
    from astrasim_py.chakra.et_io import write_prefix

    prefix, model = str(tmp_path / "in"), str(tmp_path / "model.json")
    write_prefix(prefix, [kernels(6)])
    assert main(["trace", "learn", prefix, model]) == 0
    assert "6 x 3 places" in capsys.readouterr().out
    made = {}
    for name, seed, source in (("a", 5, model), ("b", 5, prefix), ("c", 6, model)):
        target = str(tmp_path / name)
        assert main(["trace", "synthesize", target, "--from", source, "--repeats", "9", "--seed", str(seed)]) == 0
        made[name] = (tmp_path / f"{name}.0.et").read_bytes()
        assert main(["trace", "lint", target]) == 0
    assert made["a"] == made["b"] != made["c"]
    assert main(["trace", "synthesize", prefix, "--from", str(tmp_path)]) == 2
    assert "is IN itself, which would be lost" in capsys.readouterr().err


def test_a_model_that_makes_no_valid_set_writes_nothing(tmp_path, capsys):
    plain = json.loads(write_model(SynthesisModel(workloads=(learned(tp=2),))))
    plain["workloads"][0]["ranks"][0]["groups"] = ["none"] * 9
    path = tmp_path / "model.json"
    path.write_text(json.dumps(plain))
    assert main(["trace", "synthesize", str(tmp_path / "out"), "--from", str(path), "--repeats", "3"]) == 3
    assert "makes no valid set" in capsys.readouterr().err
    assert not list(tmp_path.glob("out*"))


@pytest.mark.parametrize(
    ("options", "said"),
    [
        (["--repeats", "0"], "--repeats: 0 is less than 1"),
        (["--size-factor", "nan"], "--size-factor: nan is no factor"),
        (["--seed", "-1"], "--seed: -1 is negative"),
        (["--want", "all_reduce=0x1MB"], "is no number of calls and size of one"),
        (["--want", "mean=3x1MB"], '"mean" is no kind of call'),
        (["--want", "compute=3"], "has no unit"),
        (["--want", "all_gather=1000000000x1MB"], "nothing learned has all_gather; write some of compute"),
        (["--repeats", "4"], "--repeats: nothing repeats"),
        (["--world-size", "1000000000"], "are too many"),
        (["--peak", "1 TFLOP/s"], ""),
    ],
)
def test_wrong_wishes_are_one_line(tmp_path, capsys, options, said):
    from astrasim_py.chakra.et_io import write_prefix

    prefix = str(tmp_path / "in")
    write_prefix(prefix, [kernels(2)])
    code = main(["trace", "synthesize", str(tmp_path / "out"), "--from", prefix, *options])
    assert (code == 0) == (not said)
    assert said in capsys.readouterr().err


def encoded(workload) -> list[bytes]:
    return [encode_trace(trace) for trace in workload.traces]


def test_the_same_seed_makes_the_same_bytes():
    first, again, other = (encoded(synthesize(learned(tp=2), np.random.default_rng(n))) for n in (1, 1, 2))
    assert first == again != other


GOLDEN = Path(os.environ.get("ASTRASIM_GOLDEN", "")) / "pytorch/tracelens"


@pytest.mark.skipif(not GOLDEN.exists(), reason="needs ASTRASIM_GOLDEN")
@pytest.mark.parametrize(
    ("name", "period", "repeats", "most"),
    [("h100_bert_small", 12, 4, 0.03), ("h100_qwen1.5_0.5b", 49, 24, 0.03), ("b200_eager_rank0of8", 50, 18, 0.02)],
)
def test_recorded_steps_are_predicted_from_half_of_their_blocks(tmp_path, name, period, repeats, most):
    prefix = str(tmp_path / "in")
    options = ["--kineto", str(GOLDEN / f"{name}.json.gz"), "--allow-partial", "--quiet"]
    assert main(["trace", "convert", "pytorch", prefix, *options]) == 0
    recorded = read_workload(prefix)
    model = learn(original_of(recorded))
    (program,) = model.programs
    assert (len(program.block), program.occurrences) == (period, repeats)
    half = Goal(repeats=repeats, drawn_from=tuple(range(0, repeats, 2)))
    errors = [
        Rules().makespan(synthesize(model, np.random.default_rng(seed), half)) / Rules().makespan(recorded) - 1
        for seed in range(4)
    ]
    assert max(map(abs, errors)) <= most
    assert Rules().makespan(synthesize(model, None)) == Rules().makespan(recorded)
