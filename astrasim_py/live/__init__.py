"""A page that steers a simulation while it runs."""
