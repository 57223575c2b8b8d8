"""Measured times of collectives: their files, the formula of a profile, and the fit of its numbers."""
