"""Make anew what the documentation shows: ``python docs/refresh.py WHAT``.

WHAT is ``tutorial``: execute docs/tutorial.ipynb and store its outputs; ``pictures [NAME…]``: draw the pictures of
docs/figures/, in three CPU minutes for all (see docs/pictures.py); ``compatible``: write the list of
docs/compatible.md; ``presets``: write the lists of docs/reference/presets.md; ``cli``: write the lists of docs/cli.md;
or ``pages``: take pictures of the page of `view`, in Chromium (see docs/torus_page.py). Needs ``pip install -e
'.[notebook]'``, for ``pages`` ``'.[test]'``.
"""

import base64
import io
import sys
import tempfile
from pathlib import Path

from PIL import Image

from astrasim_py.topology.hardware import preset_content, preset_names

DOCS = Path(__file__).resolve().parent


def small(png: bytes, dpi: int = 100) -> bytes:
    """A picture with 64 colours and at most `dpi` pixels an inch."""
    with Image.open(io.BytesIO(png)) as image:
        factor = min(1, dpi / image.info.get("dpi", (dpi,))[0])
        size = [round(factor * side) for side in image.size]
        image = image.convert("RGB").resize(size, Image.Resampling.LANCZOS)
        stream = io.BytesIO()
        image.quantize(64, Image.Quantize.MAXCOVERAGE, dither=Image.Dither.NONE).save(stream, "PNG", optimize=True)
    return stream.getvalue()


def tutorial() -> None:
    """Execute the notebook in an empty folder; keep texts, tables and small pictures."""
    import nbclient
    import nbformat

    path = DOCS / "tutorial.ipynb"
    notebook = nbformat.read(path, 4)
    with tempfile.TemporaryDirectory() as folder:
        nbclient.NotebookClient(notebook, timeout=600, resources={"metadata": {"path": folder}}).execute()
    for number, cell in enumerate(notebook.cells):
        cell["id"] = f"cell-{number}"
        cell.metadata.clear()
        for output in cell.get("outputs", []):
            output.get("metadata", {}).clear()
            if "image/png" in output.get("data", {}):
                output.data["image/png"] = base64.b64encode(small(base64.b64decode(output.data["image/png"]))).decode()
    notebook.metadata = {
        "kernelspec": {"display_name": "Python 3", "language": "python", "name": "python3"},
        "language_info": {"name": "python"},
    }
    nbformat.write(notebook, path)


def compatible() -> None:
    """Write the list of docs/compatible.md."""
    from expanded import exclusions

    path = DOCS / "compatible.md"
    before, heading, _ = path.read_text("utf-8").partition("## What excludes what\n\n")
    path.write_text(f"{before}{heading}{exclusions()}\n", "utf-8")


def machines() -> str:
    """The presets of machines: their network, and the NPU with its rates without sparsity."""
    lines = []
    for name in preset_names("topology"):
        content = preset_content(name)
        compute = content["compute"]
        memory = f"{compute['memory']} at {compute['memory_bandwidth']}"
        lines.append(f"* `{name}`: {_network(content['topology'])}; {_npu(compute)}, {memory}")
    return "\n".join(lines)


def _network(keys: dict) -> str:
    """A topology's keys in a few words."""
    if "edges" in keys:
        return f"{keys['npus']} NPUs, a hybrid cube mesh of NVLinks"
    if keys["shape"] != "dgx":
        size = "×".join(map(str, keys["dims"])) if "dims" in keys else keys["npus"]
        return f"{keys['shape']} of {size}, {keys['bandwidth']}, {_shown_time(keys['latency'])}"
    rails = f", {keys['rails']} rails" if "rails" in keys else ""
    return f"{keys['npus']} on {keys['nvlink_bandwidth']}, NICs of {keys['nic_bandwidth']}{rails}"


def _shown_time(text: str) -> str:
    return text.replace("us", "µs")


def _npu(compute: dict) -> str:
    """An NPU and its peaks in TFLOP/s; fp16 where it is not that of bf16."""
    peaks = dict(compute["peak"])
    if peaks.get("fp16") == peaks.get("bf16"):
        del peaks["fp16"]
    rates = ", ".join(f"{name} {rate.removesuffix(' TFLOP/s')}" for name, rate in peaks.items())
    return f"{compute['npu']}: {rates}"


def links() -> str:
    """The presets of links, those of equal rates on one line."""
    names: dict[str, list[str]] = {}
    for name in preset_names("link"):
        link = preset_content(name)["link"]
        names.setdefault(f"{link['bandwidth']}, {_shown_time(link['latency'])}", []).append(f"`{name}`")
    return "\n".join(f"* {', '.join(equal)}: {rates}" for rates, equal in names.items())


def presets() -> None:
    """Write the lists of docs/reference/presets.md, each below its heading."""
    path = DOCS / "reference" / "presets.md"
    text = path.read_text("utf-8")
    for heading, table in (("Machines", machines()), ("Links", links())):
        before, _, after = text.partition(f"<!-- {heading} -->\n")
        text = f"{before}<!-- {heading} -->\n{table}\n\n{after.partition(chr(10) * 2)[2]}"
    path.write_text(f"{text.rstrip()}\n", "utf-8")


def cli() -> None:
    """Write the lists of options of docs/cli.md."""
    from cli_tables import filled

    path = DOCS / "cli.md"
    path.write_text(filled(path.read_text("utf-8")), "utf-8")


def pages() -> None:
    """Take pictures of the page of `view`."""
    import torus_page

    for name, png in torus_page.pictures():
        (DOCS / "figures" / name).write_bytes(small(png))


if __name__ == "__main__":
    what, *names = sys.argv[1:] or [""]
    writers = {"tutorial": tutorial, "compatible": compatible, "presets": presets, "cli": cli, "pages": pages}
    if what == "pictures":
        import pictures

        pictures.refresh(names)
    elif what in writers:
        writers[what]()
    else:
        sys.exit(__doc__)
