"""From a point of a scenario to a problem: files, models and algorithms."""
