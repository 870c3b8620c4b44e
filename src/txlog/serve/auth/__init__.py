"""Who a caller of `txlog serve` is, and what it may do.

Contents:

    guard     the file of rules, callers, whom transactions belong to
    issuers   which authority issued a certificate
    keys      what tokens are signed with
    pairs     new keys
    policy    which role may do what, and where
    tokens    JSON web tokens
"""

from txlog.serve.auth.guard import ANYONE, AuthProvider, Caller
from txlog.serve.auth.policy import ADMIN, CONSUME, LOOK, PRODUCE, STORE, Resource, resource_of

__all__ = [
    "ADMIN",
    "ANYONE",
    "CONSUME",
    "LOOK",
    "PRODUCE",
    "STORE",
    "Caller",
    "AuthProvider",
    "Resource",
    "resource_of",
]
