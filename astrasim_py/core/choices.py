"""Names that a user chooses from: engines and record levels."""

from __future__ import annotations

AUTO, SIMPY, COMPILED, BOTH = "auto", "simpy", "compiled", "both"
#: ``auto`` picks one of the next two; ``both`` runs them and compares their records.
ENGINES = (AUTO, SIMPY, COMPILED, BOTH)
#: What follows the name of the engine in the records of a folded run.
FOLDED = "+fold"

#: Record levels, each including the one before it.
LEVELS = ("summary", "links", "nodes", "messages")
