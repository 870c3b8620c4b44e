"""State: each module is one fold, a deterministic function of its ops; none imports another."""
