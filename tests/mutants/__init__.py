"""Mutants: patches that each break one promise of the protocol, and the command that looks for them."""
