"""Collectives: what each of them promises."""
