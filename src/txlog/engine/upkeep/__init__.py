"""Maintenance: checkpoint and sealing; holds no lock that a producer needs while it works."""
