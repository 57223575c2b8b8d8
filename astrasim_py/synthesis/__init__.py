"""Producers of schedules: which link carries which chunk when, for any topology and collective."""
