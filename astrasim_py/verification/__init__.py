"""Verification of algorithms, and bounds that no algorithm can beat."""
