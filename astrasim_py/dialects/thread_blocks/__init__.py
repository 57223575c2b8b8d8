"""Given programs, executed by a library's thread blocks, step by step."""
