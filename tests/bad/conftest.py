"""Run the command line on hostile input, and build Chakra ET files byte by byte."""

from __future__ import annotations

import os
import re
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path

import pytest
from limits import WAIT_S

from astrasim_py.cli.main import main


def _slowness() -> float:
    """How many times slower this machine is, right now, than one that counts to a million in 0.04 s; at least 1."""
    begin = time.process_time()
    for _ in range(1_000_000):
        pass
    return max(1.0, (time.process_time() - begin) / 0.04)


#: What refusing an input may cost: CPU seconds and MiB. The promise is 2 s on a free machine; a shared core was seen to
#: take three times as long for the same work, and its speed changes between the measurement above and the test.
SECONDS, MIB = 3 * 2.0 * _slowness(), 300

BASE = """\
name: base
topologies:
  ring: {shape: ring, npus: 4, bandwidth: 50 GB/s, latency: 500 ns}
workload:
  - all_reduce: {size: 1 KiB}
"""


#: The command line, leaving the most memory it ever held (KiB) in a file where the system tells it. What the
#: system says of an ended child would count the memory of the process that started it too.
_MEASURED = """\
import sys
from astrasim_py.cli.main import main
code = main(sys.argv[1:])
sys.stdout.flush()
try:
    lines = open("/proc/self/status").read().splitlines()
except OSError:
    lines = []
for line in lines:
    if line.startswith("VmHWM:"):
        open(".peak", "w").write(line.split()[1])
sys.exit(code)
"""


@dataclass(frozen=True)
class Ended:
    """How a command line ended; seconds are of CPU, since tests share their machine."""

    code: int
    out: str
    err: str
    seconds: float
    mib: float = 0.0

    @property
    def lines(self) -> list[str]:
        """Error lines without the name of the program."""
        return [line.removeprefix("astrasim-py: ") for line in self.err.splitlines()]


class Cli:
    """The command line in a folder of its own."""

    def __init__(self, folder: Path, capsys) -> None:
        self.folder, self.capsys = folder, capsys
        self.results = folder / "results"

    def __call__(self, *argv: object) -> Ended:
        """In this process."""
        self.capsys.readouterr()
        begin = time.process_time()
        code = main([str(word) for word in argv])
        seconds = time.process_time() - begin
        shown = self.capsys.readouterr()
        return Ended(code, shown.out, shown.err, seconds)

    def spawn(self, *argv: object, **options) -> subprocess.Popen:
        """In a process of its own."""
        options.setdefault("stdout", subprocess.PIPE)
        options.setdefault("stderr", subprocess.PIPE)
        options.setdefault("cwd", self.folder)
        return subprocess.Popen([sys.executable, "-m", "astrasim_py", *map(str, argv)], **options)

    def process(self, *argv: object) -> Ended:
        """In a process of its own, with its true exit code and its largest memory."""
        begin = os.times()
        command = [sys.executable, "-c", _MEASURED, *map(str, argv)]
        done = subprocess.run(command, capture_output=True, cwd=self.folder, timeout=WAIT_S)
        end = os.times()
        seconds = end.children_user + end.children_system - begin.children_user - begin.children_system
        peak = self.folder / ".peak"
        mib = int(peak.read_text()) / 1024 if peak.exists() else 0.0
        peak.unlink(missing_ok=True)
        return Ended(done.returncode, done.stdout.decode(), done.stderr.decode(), seconds, mib)

    def write(self, name: str, content: str | bytes) -> Path:
        """A file in the folder."""
        path = self.folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(content.encode() if isinstance(content, str) else content)
        return path

    def points(self) -> list[Path]:
        """Folders of finished points."""
        return sorted(path.parent for path in self.results.glob("*/points/[!.]*/manifest.json"))

    def refused(self, ended: Ended, code: int, *patterns: str) -> None:
        """Assert that an input was refused as promised, and that the patterns are in what was said."""
        assert ended.code == code, ended.err
        assert ended.err.strip(), "it says why"
        assert "Traceback" not in ended.err + ended.out
        assert "defect" not in ended.err
        if ended.out:
            # A run says of every point how it ended, and names no folder that is not there.
            assert "failed" in ended.out
            assert "results:" not in ended.out
        for line in ended.err.splitlines():
            assert line.startswith("astrasim-py: "), line
            assert len(line) < 600, line
        for pattern in patterns:
            assert re.search(pattern, ended.err), f"{pattern!r} is not in {ended.err!r}"
        assert ended.seconds < SECONDS
        assert ended.mib < MIB
        left = [path for path in self.results.rglob("*") if not path.is_dir()] if self.results.exists() else []
        assert not left, "no partial result"


@pytest.fixture
def cli(tmp_path, capsys, monkeypatch) -> Cli:
    """The command line in a folder of its own, which is the current one."""
    folder = tmp_path / "here"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.delenv("ASTRASIM_DEBUG", raising=False)
    return Cli(folder, capsys)


@pytest.fixture(scope="session")
def bad() -> Path:
    """The folder of hostile files."""
    return Path(__file__).parent


def _varint(value: int) -> bytes:
    out = bytearray()
    while value > 127:
        out.append(value & 127 | 128)
        value >>= 7
    return bytes([*out, value])


class Et:
    """Chakra ET written field by field, so that it can also be written wrongly."""

    varint = staticmethod(_varint)

    @staticmethod
    def number(field: int, value: int) -> bytes:
        """A varint field; negative values as protobuf writes int64."""
        return _varint(field << 3) + _varint(value & (2**64 - 1))

    @staticmethod
    def data(field: int, value: bytes) -> bytes:
        """A field with a length."""
        return _varint(field << 3 | 2) + _varint(len(value)) + value

    @classmethod
    def attribute(cls, name: str, value: int | str | bool) -> bytes:
        """An attribute: int64_val, string_val or bool_val."""
        if isinstance(value, bool):
            member = cls.number(27, int(value))
        else:
            member = cls.data(29, value.encode()) if isinstance(value, str) else cls.number(9, value)
        return cls.data(10, cls.data(1, name.encode()) + member)

    @classmethod
    def node(cls, number: int | None, kind: int, deps=(), ctrl=(), raw: bytes = b"", micros: int = 0, **attrs) -> bytes:
        """A node; `raw` is put after its fields."""
        body = b"" if number is None else cls.number(1, number)
        body += cls.data(2, f"node {number}".encode()) + cls.number(3, kind)
        body += cls.data(4, b"".join(map(_varint, ctrl))) if ctrl else b""
        body += cls.data(5, b"".join(map(_varint, deps))) if deps else b""
        body += cls.number(7, micros) if micros else b""
        return body + raw + b"".join(cls.attribute(name, value) for name, value in attrs.items())

    @classmethod
    def file(cls, *nodes: bytes) -> bytes:
        """A whole file of schema 0.0.4."""
        return b"".join(_varint(len(body)) + body for body in (cls.data(1, b"0.0.4"), *nodes))

    @classmethod
    def send(cls, number: int, src: int, dst: int, size: int = 1024, tag: int = 0, **more) -> bytes:
        """A send node."""
        return cls.node(number, 5, comm_src=src, comm_dst=dst, comm_size=size, comm_tag=tag, **more)

    @classmethod
    def recv(cls, number: int, src: int, dst: int, size: int = 1024, tag: int = 0, **more) -> bytes:
        """A receive node."""
        return cls.node(number, 6, comm_src=src, comm_dst=dst, comm_size=size, comm_tag=tag, **more)

    @classmethod
    def collective(cls, number: int, kind: int = 0, size: int = 1024, **more) -> bytes:
        """A collective node; kind 0 is all_reduce."""
        return cls.node(number, 7, is_cpu_op=False, comm_type=kind, comm_size=size, **more)


@pytest.fixture(scope="session")
def et() -> type[Et]:
    """The writer of Chakra ET bytes."""
    return Et


class Traces:
    """A scenario that runs the traces t.<rank>.et beside it."""

    def __init__(self, cli: Cli) -> None:
        self.cli = cli

    def scenario(self, npus: int, more: str = "", workload: str = "{trace: t}") -> Path:
        """The scenario, on a ring of `npus`."""
        topology = f"{{shape: ring, npus: {npus}, bandwidth: 50 GB/s, latency: 500 ns}}"
        text = f"name: traces\ntopologies: {{ring: {topology}}}\nworkload: {workload}\n{more}"
        return self.cli.write("traces.yaml", text)

    def run(self, *files: bytes, npus: int | None = None, more: str = "", options=()) -> Ended:
        """Write one file per rank and run them."""
        for rank, content in enumerate(files):
            self.cli.write(f"t.{rank}.et", content)
        path = self.scenario(npus or max(len(files), 2), more)
        return self.cli("run", path, "--quiet", "--jobs", 1, *options)


@pytest.fixture
def traces(cli) -> Traces:
    """Run workloads made of bytes."""
    return Traces(cli)


@pytest.fixture(scope="session")
def base() -> str:
    """A good scenario, to be spoiled."""
    return BASE
