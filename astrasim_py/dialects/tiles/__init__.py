"""Collectives that the workload uses in tiles, before they are whole."""
