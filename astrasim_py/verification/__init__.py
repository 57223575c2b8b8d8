"""Verification of algorithms, and what no algorithm can beat."""
