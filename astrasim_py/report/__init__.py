"""Report: pure functions of rows and records – tables, figures, timeline, explanation."""
