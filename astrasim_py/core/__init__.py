"""What every room above shares: units, errors, records, digests, fields of models, and compiling."""
