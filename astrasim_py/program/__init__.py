"""Programs: who does what in a collective algorithm, over all ranks; and their files."""
