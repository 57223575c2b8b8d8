"""Chakra execution traces: the common representation of workloads and of collective algorithms."""
