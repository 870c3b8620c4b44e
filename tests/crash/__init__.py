"""Owns the crash tests: crashes, power cuts, failing calls, damaged files and dying processes."""
