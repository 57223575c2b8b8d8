"""Searches that need an optional library."""
