"""Semantics and the Plan: a Problem is turned once into flat integer arrays that every engine runs."""
