"""Collective algorithms: their representation, builders, verification, bounds and selection."""
