"""Owns the TLS of a server: its certificate, which can be replaced at run time, and its clients'
certificates.
"""

from __future__ import annotations

import ssl
from pathlib import Path

from txlog.errors import InvalidArgument
from txlog.serve.auth import keys
from txlog.serve.auth.access import Certificate


class _SslContext(ssl.SSLContext):
    """A context that remembers the authorities it trusts, as the bytes of their file."""

    authorities = b""


class TlsContext:
    """The settings of new TLS connections; open connections keep the context of their handshake.

    context: for new connections
    needs_certificate: clients without a verified certificate are refused everywhere
    """

    __slots__ = ("_ca", "_certificate", "_key", "context", "needs_certificate")

    def __init__(
        self,
        certificate: Path,
        key: Path,
        ca: Path | None = None,
        *,
        needs_certificate: bool = False,
    ) -> None:
        """ca: the authorities that sign clients' certificates. needs_certificate: only with ca.

        raises: InvalidArgument
        """
        self._certificate, self._key, self._ca = certificate, key, ca
        self.needs_certificate = needs_certificate and ca is not None
        self.context = self._made()

    def reload(self) -> None:
        """Read certificate, key and authorities again, for new connections.

        This makes a new context: OpenSSL only adds authorities to a context, and never removes any.

        raises: InvalidArgument: the old ones stay in use
        """
        self.context = self._made()

    def certificate_of(self, ssl_object: object, now_ms: int) -> Certificate | None:
        """The certificate of a client, if the current authorities signed it.

        ssl_object: as a transport names it. A connection that began with other authorities keeps
                    its certificate only if a current authority has signed it directly.
        """
        if not isinstance(ssl_object, ssl.SSLObject | ssl.SSLSocket):
            return None
        certificate = ssl_object.getpeercert()
        began_with, authorities = ssl_object.context, self.context.authorities
        if not certificate or (
            isinstance(began_with, _SslContext) and began_with.authorities == authorities
        ):
            return certificate or None
        encoded = ssl_object.getpeercert(binary_form=True)
        assert encoded is not None
        return certificate if keys.is_issued_by(encoded, authorities, now_ms) else None

    def _made(self) -> _SslContext:
        context = _SslContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        self._load(context)
        if self._ca is not None:
            required = ssl.CERT_REQUIRED if self.needs_certificate else ssl.CERT_OPTIONAL
            context.verify_mode = required
        return context

    def _load(self, context: _SslContext) -> None:
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
            if self._ca is not None:
                context.authorities = self._ca.read_bytes()
                context.load_verify_locations(self._ca)
        except ssl.SSLError as error:
            files = f"{self._certificate} and {self._key}"
            reason = (error.reason or str(error)).replace("_", " ").lower()
            raise InvalidArgument(f"no TLS with {files}: {reason}") from error
        except OSError as error:
            raise InvalidArgument(
                f"no TLS: {self._missing()} cannot be read: {error.strerror}"
            ) from error
        except ValueError as error:
            raise InvalidArgument(f"no TLS: {self._key} has a password") from error

    def _missing(self) -> str:
        """The first of the files that cannot be read."""
        for path in (self._certificate, self._key, self._ca):
            try:
                if path is not None:
                    path.open("rb").close()
            except OSError:
                return str(path)
        return "a file"


def _no_password() -> bytes:
    """Refuse a key with a password: a starting server cannot ask for one."""
    raise ValueError
