"""Parameters, the Problem, and its Plan: flat integer arrays that every engine runs."""
