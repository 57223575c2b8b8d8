"""Interruptions of compute at regular times."""
