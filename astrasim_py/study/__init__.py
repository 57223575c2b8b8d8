"""Study: prepare points, run them, and keep their results."""
