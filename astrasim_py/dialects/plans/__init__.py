"""MSCCL++ plans under a profile: each operation has its cost."""
