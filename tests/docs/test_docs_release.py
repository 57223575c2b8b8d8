"""The version, the citation and the changelog name the same release."""

import re
import tomllib

import yaml


def test_one_release_is_named_everywhere(repo):
    version = tomllib.loads((repo / "pyproject.toml").read_text("utf-8"))["project"]["version"]
    citation = yaml.safe_load((repo / "CITATION.cff").read_text("utf-8"))
    changes = (repo / "CHANGELOG.md").read_text("utf-8")
    releases = re.findall(r"^## \[([\d.]+)\] - (\S+)\n\nTag `(\S+)`\.$", changes, re.MULTILINE)
    assert releases[0] == (version, str(citation["date-released"]), f"v{version}")
    assert citation["version"] == version
    assert releases == sorted(releases, key=lambda release: tuple(map(int, release[0].split("."))), reverse=True)
