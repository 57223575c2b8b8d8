"""A network model of the user's own."""
