"""Scenarios: one YAML file in, resolved points out. Pure and fast; nothing is simulated here."""
