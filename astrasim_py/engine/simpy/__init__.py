"""The SimPy engine: NPUs are processes, links are resources."""
