"""Profiles: what the collectives of a library cost on a real machine, found from measured times.

A profile is the section ``collectives`` of a hardware preset, shipped or of the user. docs/dialects.md has the
formulas that use its numbers.
"""

from typing import Annotated, Any

from pydantic import BeforeValidator, Field

from astrasim_py.core.choices import COLLECTIVE_NAMES, LIBRARY_ALGORITHMS, PROTOCOLS
from astrasim_py.core.conditions import RanksCondition, SizeCondition, hold
from astrasim_py.core.fields import Count, MemoryBandwidth, Number, Size, Text, Time, choice, did_you_mean, shown, wrong
from astrasim_py.core.strict_model import StrictModel, example

#: Group sizes and number formats for which a library reduces in the switch, unless a profile says otherwise. Source of
#: the formats: NCCL, ncclNvlsSupported (src/include/device.h).
_SWITCH_RANKS = 3
SWITCH_DTYPES = ("half", "bfloat16", "float", "double", "int32", "uint32", "int64", "uint64")


class Protocol(StrictModel):
    """One protocol of a library: launch of a call, latency of a message, and its rate.

    ``LL`` sends over channels, each at `channel_rate`; ``Simple`` and ``LL128`` fill the links of an NPU at `rate`.
    """

    launch: Time = example("5.10 us")
    step: Time = example("616 ns")
    channel_rate: MemoryBandwidth | None = example("6.44 GB/s", default=None)
    rate: MemoryBandwidth | None = example("343 GB/s", default=None)

    def _complete(self) -> None:
        if (self.channel_rate is None) == (self.rate is None):
            raise wrong("a protocol has a rate or a channel_rate, one of both", 'write e.g. rate: "343 GB/s"')


class SwitchReduction(StrictModel):
    """all_reduce in the switch: its launch and rate, and where the library takes it."""

    launch: Time = example("55.3 us")
    rate: MemoryBandwidth = example("292 GB/s")
    collectives: tuple[Annotated[str, choice(*COLLECTIVE_NAMES)], ...] = Field(default=("all_reduce",), alias="for")
    dtypes: tuple[Text, ...] = SWITCH_DTYPES
    ranks: Count = Field(default=_SWITCH_RANKS, description="smallest group")


class ProgramProtocol(StrictModel):
    """Costs of given programs, thread block by thread block: `rate` is that of one block for any step.

    `link`: rate of an NPU's link where it limits; none under LL.
    """

    launch: Time = example("4.96 us")
    latency: Time = example("1.02 us")
    step: Time = example("320 ns")
    rate: MemoryBandwidth = example("3.24 GB/s")
    link: MemoryBandwidth | None = example("38 GB/s", default=None)
    slice: Size | None = Field(
        default=None, description="bytes of a pass of one block; by default that of its protocol"
    )

    def _complete(self) -> None:
        if self.slice == 0:
            raise wrong("a slice of 0 bytes", 'write e.g. slice: "16 KiB"', ("slice",))


class PlanProtocol(StrictModel):
    """Costs of operations of MSCCL++ plans: `rate` is that of one thread block, for its own work and for stores.

    `latency`: of a message of a memory channel, be it data, packets or a signal. `link`: as of a program.
    """

    launch: Time = example("4 us")
    latency: Time = example("1 us")
    step: Time = Field(default=0, description="before local work that follows no other", examples=["300 ns"])
    rate: MemoryBandwidth = example("20 GB/s")
    link: MemoryBandwidth | None = example("250 GB/s", default=None)
    meeting: Time = Field(default=0, description="a nop or barrier", examples=["50 ns"])
    request: Time = Field(default=0, description="a block's request to a port channel", examples=["500 ns"])
    proxy: Time = Field(default=0, description="the proxy, from a request to its message", examples=["3 us"])


class NodeNetwork(StrictModel):
    """Costs of calls and messages between nodes. `fitted` is false where the numbers are a library's constants."""

    launch: Time = 0
    steps: dict[str, Time] = Field(description="latency of a message by protocol", examples=["{LL: 5 us}"])
    efficiency: Number = Field(default=1.0, description="share of a NIC's bandwidth that messages reach")
    fitted: bool = False

    def _complete(self) -> None:
        if not 0 < self.efficiency <= 1:
            raise wrong(f"{self.efficiency} is not a share", "write a number above 0, at most 1", ("efficiency",))


class Choice(StrictModel):
    """A row of a table of choices: what the library takes for the calls that satisfy its conditions."""

    collective: Annotated[str, choice(*COLLECTIVE_NAMES)] | None = None
    size: SizeCondition = None
    ranks: RanksCondition = None
    algorithm: Annotated[str, choice(*LIBRARY_ALGORITHMS)] | None = Field(
        default=None, description="by default the fastest"
    )
    protocol: Annotated[str, choice(*PROTOCOLS)] | None = Field(default=None, description="by default the fastest")

    def holds(self, collective: str, size: int, ranks: int) -> bool:
        """Whether the row applies to a call of `size` bytes (full buffer) on a number of ranks."""
        return self.collective in (None, collective) and hold(self.size, size) and hold(self.ranks, ranks)


class Fit(StrictModel):
    """Source of the numbers: rows of the fit, and relative errors on held-out rows."""

    date: Text
    rows: int
    held_out: Text
    median: Number
    p90: Number
    source: Text = ""


def _table(value: Any) -> Any:
    if isinstance(value, str) and value != "fastest":
        raise wrong(f"{shown(value)} is not a choice", 'write "fastest", or a list of rows')
    return () if value == "fastest" else value


class LibraryProfile(StrictModel):
    """Costs of a library's collectives on one machine; valid for the `ranks`, `sizes` and `dtypes` of the rows."""

    _place = "collectives"

    library: Text = example("NCCL 2.29.2")
    ranks: Annotated[tuple[Count, ...], Field(min_length=1)]
    sizes: tuple[Size, Size] = Field(description="smallest and largest full buffer")
    dtypes: tuple[Text, ...]
    channels: Count = example("24")
    channel_bytes: Size = Field(default=4096, description="least of one channel and rank")
    choose: Annotated[tuple[Choice, ...], BeforeValidator(_table)] = Field(
        default=(), description="fastest, or a table of which the first row that holds chooses; else the fastest"
    )
    protocols: dict[str, Protocol] = Field(default_factory=dict)
    link: MemoryBandwidth | None = Field(
        default=None, description="nominal bandwidth of the links that the rates are for; by default that of `topology`"
    )
    copy_rate: MemoryBandwidth | None = Field(default=None, alias="copy", description="of the local copy of a call")
    peer: Time = Field(default=0, description="each peer of a direct step")
    switch: SwitchReduction | None = None
    programs: dict[str, ProgramProtocol] | None = None
    plans: dict[str, PlanProtocol] | None = None
    network: NodeNetwork | None = None
    fit: Fit | None = None

    def _complete(self) -> None:
        if self.sizes[0] > self.sizes[1]:
            raise wrong("the first size is above the second one", "write the smallest and the largest one", ("sizes",))
        if not self.channel_bytes:
            raise wrong("a channel of 0 bytes", 'write e.g. "4 KiB"', ("channel_bytes",))
        named = {key: getattr(self, key) or {} for key in ("protocols", "programs", "plans")}
        named["network"] = {} if self.network is None else self.network.steps
        for key, names in named.items():
            for name in names:
                if name not in PROTOCOLS:
                    raise wrong(f"{shown(name)} is not a protocol", did_you_mean(name, PROTOCOLS), (key, name))
        missing = [] if self.network is None else [name for name in self.protocols if name not in self.network.steps]
        if missing:
            problem = f"no latency of {missing[0]} between nodes"
            raise wrong(problem, f"write e.g. {missing[0]}: 5 us", ("network", "steps"))
        for number, row in enumerate(self.choose):
            if row.protocol is not None and row.protocol not in self.protocols:
                problem, remedy = f"the profile has no {row.protocol}", did_you_mean(row.protocol, self.protocols)
                raise wrong(problem, remedy, ("choose", number, "protocol"))
            if row.algorithm == "switch" and (self.switch is None or row.protocol is not None):
                problem = "the profile has no switch" if self.switch is None else "a switch has no protocols"
                raise wrong(problem, "drop one of them", ("choose", number, "algorithm"))

    def chosen(self, collective: str, size: int, ranks: int) -> Choice:
        """The table's choice for a call of `size` bytes (full buffer); empty if no row applies."""
        return next((row for row in self.choose if row.holds(collective, size, ranks)), Choice())

    def channels_for(self, size: int, ranks: int) -> int:
        """Channels of LL for a full buffer of `size` bytes: at least `channel_bytes` per channel and rank."""
        return max(1, min(self.channels, size // (self.channel_bytes * ranks)))
