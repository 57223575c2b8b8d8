"""Training and inference of models as workloads: shapes, parallelism, schedules, memory, times."""
