"""Choices for a whole step together: algorithms, chunks, tiles, buckets, order, placement; judged by simulation."""
