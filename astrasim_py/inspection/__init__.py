"""Look at stored results: explain, compare, draw, show in a page."""
