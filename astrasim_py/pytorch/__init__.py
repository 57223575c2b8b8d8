"""Recordings of PyTorch (Kineto, and the execution traces of the host) become workloads of Chakra ETs."""
