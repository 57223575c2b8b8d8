"""What the algorithms of a scenario come from; each is imported when a scenario names such a one."""
