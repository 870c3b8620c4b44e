"""Owns the certificates of tests: self-signed, or signed by another one."""

from __future__ import annotations

import datetime
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

Signer = tuple[x509.Certificate, ec.EllipticCurvePrivateKey]


def make_signed(name: str, signer: Signer | None = None) -> Signer:
    """A certificate for a name, valid for years around the present; signer None: its own."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    issuer = subject if signer is None else signer[0].subject
    certificate = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(datetime.datetime(2020, 1, 1, tzinfo=datetime.UTC))
        .not_valid_after(datetime.datetime(2090, 1, 1, tzinfo=datetime.UTC))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .add_extension(x509.BasicConstraints(ca=signer is None, path_length=None), critical=True)
        .sign(key if signer is None else signer[1], hashes.SHA256())
    )
    return certificate, key


def make_certificate(folder: Path, name: str, signer: Signer | None = None) -> tuple[Path, Path]:
    """Files with a certificate and its key."""
    folder.mkdir(exist_ok=True, parents=True)
    return written(folder, name, make_signed(name, signer))


def written(folder: Path, name: str, signed: Signer) -> tuple[Path, Path]:
    """Files with a certificate and its key, of a name."""
    certificate, key = signed
    paths = folder / f"{name}.pem", folder / f"{name}.key"
    paths[0].write_bytes(certificate.public_bytes(serialization.Encoding.PEM))
    paths[1].write_bytes(
        key.private_bytes(
            serialization.Encoding.PEM,
            serialization.PrivateFormat.PKCS8,
            serialization.NoEncryption(),
        )
    )
    return paths
