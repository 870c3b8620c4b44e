"""Owns the tests of what survives: crashes, power cuts, failing calls, damage, dying processes."""
