"""The site, made by Sphinx: ``sphinx-build -W --keep-going docs build/site``.

The pages are those of this folder, as they are. Navigation is that of index.md; reference/api.md gets docstrings,
reference/keys.md every key of scenarios, reference/presets.md the sources of figures, reference/astra_sim.md quirks,
compatible.md reasons.
"""

import re
import sys
from importlib import metadata
from pathlib import Path

from sphinx.errors import ExtensionError

sys.path.insert(0, str(Path(__file__).parent))
import expanded
import torus_page

project = "astrasim_py"
copyright = "the astrasim_py developers"
release = metadata.version("astrasim-py")
extensions = ["myst_nb", "sphinx.ext.autodoc", "sphinx.ext.napoleon"]
html_theme = "furo"
html_title = f"astrasim_py {release}"
html_show_sphinx = False
html_static_path = ["_static"]
html_css_files = ["print.css"]
nb_execution_mode = "off"  # the tests execute the notebook; its outputs are stored
myst_heading_anchors = 4
autodoc_preserve_defaults = True
autodoc_typehints = "none"  # docstrings say types
autodoc_member_order = "bysource"
napoleon_google_docstring = False
napoleon_use_rtype = False
# Blocks that are no code of their language, and types that are the name of several attributes.
suppress_warnings = ["misc.highlighting_failure", "ref.python"]


def _navigation(text: str) -> str:
    """A hidden tree of contents for each section of the first page that lists pages."""
    trees = []
    for section in text.split("\n## ")[1:]:
        pages = re.findall(r"\[[^]]+\]\(([\w/]+)\.(?:md|ipynb)\)", section)
        if pages:
            trees.append("\n".join(["```{toctree}", ":hidden:", f":caption: {section.splitlines()[0]}", *pages, "```"]))
    return "\n\n".join([text, *trees])


def _docstrings(text: str) -> str:
    """Each name of a list becomes its documentation."""

    def documented(match: re.Match) -> str:
        kind = "autoclass" if match[1].rpartition(".")[2][0].isupper() else "autofunction"
        members = "   :members:\n" if kind == "autoclass" else ""
        return f"\n```{{eval-rst}}\n.. {kind}:: astrasim_py.{match[1]}\n{members}```\n"

    return re.sub(r"^\* `([\w.]+)`\n", documented, text, flags=re.MULTILINE)


def _without_links_out(text: str, page: str) -> str:
    """Files beside this folder are not on the site: their names stay, links to them go."""
    docs = Path(__file__).parent

    def plain(match: re.Match) -> str:
        path = (docs / page).parent.joinpath(match[2]).resolve()
        return match[0] if path.is_relative_to(docs) else f"{match[1]} ({path.relative_to(docs.parent)})"

    return re.sub(r"\[([^]]+)\]\(((?:\.\./)+[^)#]+)[^)]*\)", plain, text)


def _read(app, page: str, source: list[str]) -> None:
    source[0] = _without_links_out(source[0], page)
    change = {
        "index": _navigation,
        "reference/api": _docstrings,
        "reference/keys": lambda text: f"{text}\n{expanded.keys()}\n",
        "reference/astra_sim": lambda text: text.replace("<!-- quirks -->", expanded.quirks()),
        "compatible": lambda text: f"{text}\n{expanded.reasons()}\n",
        "reference/presets": lambda text: f"{text}\n{expanded.sources()}\n",
    }.get(page)
    if change:
        source[0] = change(source[0])


def _ask_nobody(app, error: Exception | None) -> None:
    """Pages load nothing from elsewhere: no fonts, scripts or pictures."""
    for page in Path(app.outdir).rglob("*.html") if error is None else ():
        loaded = re.search(r"""<(?:script|img|link|iframe)\b[^>]*?["'](?:https?:)?//[^"']*""", page.read_text("utf-8"))
        if loaded:
            raise ExtensionError(f"{page.name} loads {loaded[0]}")


def _view(app) -> None:
    """The page of a run that index.md shows."""
    torus_page.write_page(Path(app.outdir) / "torus.html")


def setup(app) -> None:
    app.connect("builder-inited", _view)
    app.connect("source-read", _read)
    app.connect("build-finished", _ask_nobody)
