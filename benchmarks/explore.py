"""How many training configurations a core prices per second, rules and memory included.

python benchmarks/explore.py [MODEL …]
"""

import sys
import time
from dataclasses import replace

import numpy as np

from astrasim_py.training.configurations import evaluate
from astrasim_py.training.models import model
from astrasim_py.training.prices import Prices
from astrasim_py.training.strategy import Overlap, Training
from astrasim_py.training.system import system

RANKS, BATCH = 1024, 2048
AXES = {
    "tp": [1, 2, 4, 8, 16],
    "pp": [1, 2, 4, 5, 8, 10],
    "cp": [1, 2],
    "vp": [1, 2, 5],
    "mbs": [1, 2, 4, 8],
    "zero": [0, 1, 2, 3],
    "recompute": [0, 1, 3, 4],
    "sp": [False, True],
    "ep": [1, 8],
}


def seconds(name: str) -> tuple[int, float]:
    """Configurations of a model, and the CPU seconds of the quickest of three runs."""
    columns = dict(zip(AXES, (part.ravel() for part in np.meshgrid(*AXES.values(), indexing="ij")), strict=True))
    dp = np.maximum(RANKS // (columns["tp"] * columns["pp"] * columns["cp"]), 1)
    one = Training(model=model(name), seq=4096, gbs=BATCH, schedule="interleaved", overlap=Overlap(dp=True))
    more = {"dp": dp, "zero_group": dp * columns["cp"], "microbatches": np.maximum(BATCH // (dp * columns["mbs"]), 1)}
    layout, prices, spent = replace(one.unchecked(RANKS), **columns, **more), Prices(system("dgx_h100")), []
    for _ in range(3):
        start = time.process_time()
        evaluate(layout, prices)
        spent.append(time.process_time() - start)
    return len(dp), min(spent)


if __name__ == "__main__":
    for each in sys.argv[1:] or ("llama3-70b", "mixtral-8x22b"):
        count, took = seconds(each)
        print(f"{each}: {count:,} configurations in {took:.2f} CPU s, {count / took:,.0f} a second")
