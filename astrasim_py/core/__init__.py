"""Units, errors, records and digests: what every floor above shares (standard library and numpy only)."""
