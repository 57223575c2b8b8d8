"""The attack of the benchmarks on what `trace share` writes."""

from __future__ import annotations

import importlib.util
import json
import sys
from pathlib import Path

import pytest

from astrasim_py.chakra.et_io import write_prefix
from astrasim_py.core.errors import UsageError
from astrasim_py.sharing.secrets import Scales


@pytest.fixture(scope="module")
def attacks(repo):
    spec = importlib.util.spec_from_file_location("sharing_attack", repo / "benchmarks" / "sharing_attack.py")
    module = importlib.util.module_from_spec(spec)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(sys.modules, spec.name, module)  # dataclasses look there
        spec.loader.exec_module(module)
        yield module


@pytest.fixture(scope="module")
def corpus(attacks):
    return attacks.packaged_corpus()


def _write(prefix: Path, made) -> None:
    prefix.parent.mkdir(exist_ok=True)
    groups = json.dumps({name: list(ranks) for name, ranks in made.groups.items()}).encode()
    write_prefix(prefix, made.traces, beside={".groups.json": groups})


def test_secret_scales_change_no_ratios(attacks, corpus):
    made = corpus[6].original.workload
    scaled = Scales(3.7, 0.31).workload(made)
    for rank in (None, 5):
        before, after = (attacks.features(each, rank, ratios=True) for each in (made, scaled))
        assert after == pytest.approx(before, abs=2e-3)  # times and sizes are whole numbers
        assert attacks.features(scaled, rank) != pytest.approx(attacks.features(made, rank), abs=0.1)


@pytest.mark.slow
def test_without_names_all_workloads_are_found_by_scales_fewer(attacks, corpus):
    named = attacks.attack(corpus, "strip")
    assert named.workload_raw > 0.9
    assert named.source_raw > 0.9
    hidden = attacks.attack(corpus, "skeleton", secret=True)
    assert hidden.workload_adaptive < 0.7
    assert hidden.source_adaptive < 0.7
    assert min(hidden.workload_ratios, hidden.source_ratios) > 0.9
    assert max(named.workload_chance, named.source_chance) < 0.05


def test_a_corpus_is_read_from_a_folder(tmp_path, attacks, corpus):
    for number, sample in enumerate(corpus[:2]):
        _write(tmp_path / "model" / f"run{number}", sample.original.workload)
        _write(tmp_path / "other" / f"run@{number}", sample.original.workload)
    found = attacks.read_corpus(str(tmp_path))
    assert [(each.workload, each.source) for each in found] == [
        ("model", "model/run0"), ("model", "model/run1"), ("other", "other/run"), ("other", "other/run"),
    ]  # fmt: skip
    before, after = (attacks.features(each[0].original.workload).tolist() for each in (corpus, found))
    assert after == before


def test_an_attack_needs_a_library(tmp_path, attacks):
    with pytest.raises(UsageError, match="an attack needs a library"):
        attacks.read_corpus(str(tmp_path))
