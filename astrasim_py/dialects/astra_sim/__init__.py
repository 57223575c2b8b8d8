"""ASTRA-sim's rules: its order of events and of injected nodes, its rendezvous, its route of one dimension."""
