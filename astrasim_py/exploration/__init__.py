"""Search the layouts of a training on a machine by its closed form, and simulate the best."""
