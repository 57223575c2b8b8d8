"""Engines: a Plan in, Records out. Deterministic: same Plan, same Records."""
