"""Schedules as algorithms."""
