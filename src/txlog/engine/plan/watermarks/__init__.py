"""watermarks."""
