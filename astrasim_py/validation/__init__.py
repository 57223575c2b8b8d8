"""Compare with other simulators, with measurements and with known answers."""
