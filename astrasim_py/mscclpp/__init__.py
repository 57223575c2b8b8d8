"""MSCCL++ execution plans: read, verified, turned into Chakra traces, and written.

A plan is one JSON object for all ranks: thread blocks of one-sided operations over chunks of three buffers, and
channels with counters of signals (docs/mscclpp.md). `ir` is what it says, `reader` and `writer` are its text.
"""
