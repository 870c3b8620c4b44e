"""Programs with one mistake each, for the crash test."""
