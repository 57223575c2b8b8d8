"""Costs of a communication library: counters, connections with slots and pace, protocols and their choice."""
