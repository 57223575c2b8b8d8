"""Generators of workload traces."""
