"""bucket."""
