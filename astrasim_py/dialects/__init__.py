"""Dialects: rules that only some runs follow. The parts of each stand in one folder; docs/dialects.md lists them."""
