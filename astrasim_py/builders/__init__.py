"""Builders of collective algorithms, one module per algorithm."""
