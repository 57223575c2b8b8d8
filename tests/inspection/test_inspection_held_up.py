"""A run in which messages from slower links share a faster one says so, and names the model that shares links."""

from __future__ import annotations

import pytest

import astrasim_py as ap
from astrasim_py.cli.main import main
from astrasim_py.core.choices import LEVELS

FEWER_SPINES = """
name: spines
topologies: {t: {shape: leaf_spine, leaves: 2, hosts_per_leaf: 4, spines: 2, bandwidth: 50 GB/s, latency: 500 ns}}
workload: [{all_gather: {size: 16 MiB}}]
algorithms: {all_gather: recursive_doubling}
network: {model: $model}
sweep: {model: [cut_through]}
"""
SAID = {
    # Two hosts of a leaf share each uplink in the one of three steps that leaves it.
    "cut_through": "hint: cut_through: a message waited behind one from a slower link in 4 of 64 hops (6.2 %), most on "
    "leaf0->spine0 (1); that one holds the link as long as the slower one feeds it, where packets would share it; "
    "write network: {model: fluid}",
    "store_and_forward": "hint: store_and_forward: a message waited behind one from a slower link in 4 of 64 hops "
    "(6.2 %), most on leaf0->spine0 (1); that one holds the link alone, where packets would share it; "
    "write network: {model: fluid}",
}


def scenario(folder, text=FEWER_SPINES):
    path = folder / "spines.yaml"
    path.write_text(text)
    return path


@pytest.mark.parametrize("level", LEVELS)
@pytest.mark.parametrize("model", ["cut_through", "store_and_forward", "analytical", "fluid"])
def test_the_footer_names_the_link_the_share_and_the_model(tmp_path, capsys, model, level):
    path = scenario(tmp_path)
    command = ["run", str(path), "--jobs=1", f"--out={tmp_path}", "--engine=simpy", f"--record={level}"]
    command.append(f"--set=sweep.model=[{model}]")
    # The second time the point is taken from the store, and a property of the model fails no run.
    for more in ([], ["--strict"]):
        assert main([*command, *more]) == 0
        printed = capsys.readouterr()
        said = [line for line in printed.out.splitlines() if line.startswith("hint: ")]
        assert said == ([SAID[model]] if model in SAID else []) and "hint: " not in printed.err
    assert main([*command, "--format=json"]) == 0
    assert capsys.readouterr().err.count("hint: ") == (model in SAID)


def test_it_is_said_once_for_points_and_where_links_are_alike_not_at_all(tmp_path):
    path = scenario(tmp_path)
    both = ap.run(path, out=tmp_path, jobs=1, overrides=["sweep.model=[cut_through, store_and_forward, fluid]"])
    assert both.footer == (f"{SAID['cut_through']} (and 1 more point)",) and not both.warnings
    alike = ap.run(path, out=tmp_path, jobs=1, overrides=["topologies.t.spines=4"])
    assert alike.footer == () and "hints" not in alike.summaries[0]
    shared = {row["sweep"]["model"]: row["time_ns"] for row in both.rows}
    assert shared["fluid"] == alike.rows[0]["time_ns"] < shared["cut_through"]


def test_python_warns_of_the_same(tmp_path):
    (point,) = ap.expand(ap.load_scenario(scenario(tmp_path)))
    with pytest.warns(UserWarning) as told:
        ap.simulate(ap.prepare(point), engine="simpy", level="summary")
    assert [f"hint: {each.message}" for each in told] == [SAID["cut_through"]]


def test_a_profile_has_to_go_too(tmp_path):
    sends = ", ".join(f"{{send: {{from: {i}, to: {i + 4}, size: 1 MiB}}}}" for i in range(4))
    text = FEWER_SPINES.replace("{all_gather: {size: 16 MiB}}", sends).replace("model: $model", "profile: dgx_h100")
    footer = ap.run(scenario(tmp_path, text.partition("sweep:")[0]), out=tmp_path, jobs=1).footer
    assert footer[-1].endswith("write network: {model: fluid} and no profile, which fluid does not know")
