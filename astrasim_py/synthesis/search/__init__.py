"""Searches for fast schedules."""
