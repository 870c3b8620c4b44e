"""consuming."""
