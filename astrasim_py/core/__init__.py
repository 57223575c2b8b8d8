"""Units, errors, records and digests, shared by every package above (standard library and numpy only)."""
