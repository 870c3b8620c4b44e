"""Owns the mutants: patches that each break one promise, and the command that hunts them."""
