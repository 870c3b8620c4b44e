"""`txlog serve`: a store for clients of Apache Pulsar and of HTTP, on this and other machines.

Contents:

    auth/    who a caller is, and what it may do
"""
