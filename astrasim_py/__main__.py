"""``python -m astrasim_py``."""

from astrasim_py.cli import entry

if __name__ == "__main__":
    entry()
