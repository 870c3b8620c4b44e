"""Authentication of clients, and the access rules for roles.

Contents:

    access    the file of rules, callers, and the checks that listeners make
    keys      the keys that sign tokens, and the authorities that sign certificates
    policy    which role may do what, and where
    tokens    JSON web tokens
"""

from txlog.serve.auth.access import ANYONE, AccessControl, AuthProvider, Caller
from txlog.serve.auth.policy import ADMIN, CONSUME, LOOK, PRODUCE, STORE, Resource, resource_of

__all__ = [
    "ADMIN",
    "ANYONE",
    "CONSUME",
    "LOOK",
    "PRODUCE",
    "STORE",
    "AccessControl",
    "AuthProvider",
    "Caller",
    "Resource",
    "resource_of",
]
