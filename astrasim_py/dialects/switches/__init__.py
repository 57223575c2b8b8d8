"""Switches that compute: they take part in collectives."""
