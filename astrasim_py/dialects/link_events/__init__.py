"""Links that fail, change and return during a run."""
