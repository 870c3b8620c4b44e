"""Owns the question whether a certificate was issued by one of the authorities of a file."""

from __future__ import annotations

import datetime

from cryptography import x509
from cryptography.exceptions import InvalidSignature


def is_issued_by(certificate: bytes, authorities: bytes, now_ms: int) -> bool:
    """True if one of the authorities signed the certificate itself, and both are valid now.

    certificate: of a client, as DER. authorities: certificates as PEM
    A chain with authorities between them is not followed: the client sent it in its handshake, and
    Python does not keep it.
    """
    now = datetime.datetime.fromtimestamp(now_ms / 1_000, datetime.UTC)
    try:
        leaf = x509.load_der_x509_certificate(certificate)
        known = x509.load_pem_x509_certificates(authorities)
    except ValueError:  # OpenSSL reads what this library refuses: the client has to come again
        return False
    for authority in known:
        try:
            leaf.verify_directly_issued_by(authority)
        except (ValueError, TypeError, InvalidSignature):
            continue
        if all(
            each.not_valid_before_utc <= now <= each.not_valid_after_utc
            for each in (leaf, authority)
        ):
            return True
    return False
