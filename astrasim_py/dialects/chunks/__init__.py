"""Collectives cut into chunks, which a planner sends through the dimensions of a topology."""
