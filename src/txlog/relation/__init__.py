"""relation."""
