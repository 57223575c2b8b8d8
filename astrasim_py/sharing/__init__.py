"""Sharing of workloads: removing secrets, measuring error and attack."""
