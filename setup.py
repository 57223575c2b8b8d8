"""Only what pyproject.toml cannot say: the scenarios of the repository go into the wheel as lessons."""

from pathlib import Path
from shutil import copytree, ignore_patterns

from setuptools import setup
from setuptools.command.build_py import build_py


class BuildWithLessons(build_py):
    """Copies ``scenarios/`` to ``astrasim_py/data/lessons``; an editable install reads them where they are."""

    def run(self) -> None:
        """Build."""
        super().run()
        if not self.editable_mode:
            target = Path(self.build_lib) / "astrasim_py" / "data" / "lessons"
            copytree("scenarios", target, dirs_exist_ok=True, ignore=ignore_patterns("__pycache__"))


setup(cmdclass={"build_py": BuildWithLessons})
