"""What the workload of a job is made of; each kind is imported when a scenario names it."""
