"""The facts of a store: what a row is, what an op is, and how ops are folded into state.

Everything here is a value or a pure function over values; no module of this package touches a file.
"""
