"""Sharing of workloads: removing secrets, measuring the error."""
