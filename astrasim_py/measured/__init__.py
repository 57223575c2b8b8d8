"""Measured times of collectives: reading them, the formula of a profile, and the fit of its numbers."""
