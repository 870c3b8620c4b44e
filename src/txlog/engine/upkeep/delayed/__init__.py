"""delayed."""
