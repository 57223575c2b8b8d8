"""Run the points of a scenario, one or many at once, and store what they give."""
