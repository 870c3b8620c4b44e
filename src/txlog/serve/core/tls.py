"""Owns TLS of a server: its certificate, which can be replaced while it runs, and its clients'."""

from __future__ import annotations

import ssl
from pathlib import Path

from txlog.errors import InvalidArgument
from txlog.serve.auth.guard import Certificate


class Tls:
    """A context for all listeners; connections that are open keep what they began with."""

    __slots__ = ("_ca", "_certificate", "_key", "_needs_certificate", "context")

    def __init__(
        self,
        certificate: Path,
        key: Path,
        ca: Path | None = None,
        *,
        needs_certificate: bool = False,
    ) -> None:
        """ca: who signs the certificates of clients. needs_certificate: a client must have one.

        raises: InvalidArgument
        """
        self._certificate, self._key, self._ca = certificate, key, ca
        self._needs_certificate = needs_certificate
        self.context = self._made()

    def reload(self) -> None:
        """Read certificate and key again, for new connections.

        raises: InvalidArgument: they stay as they are
        """
        self._made()  # files that do not fit together leave a context half changed
        self._load(self.context)

    def _made(self) -> ssl.SSLContext:
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.minimum_version = ssl.TLSVersion.TLSv1_2
        context.options |= ssl.OP_NO_COMPRESSION | ssl.OP_NO_RENEGOTIATION
        self._load(context)
        if self._ca is not None:
            required = ssl.CERT_REQUIRED if self._needs_certificate else ssl.CERT_OPTIONAL
            context.verify_mode = required
        return context

    def _load(self, context: ssl.SSLContext) -> None:
        try:
            context.load_cert_chain(self._certificate, self._key, password=_no_password)
            if self._ca is not None:
                context.load_verify_locations(self._ca)
        except ssl.SSLError as error:
            what = f"{self._certificate} and {self._key}"
            reason = (error.reason or str(error)).replace("_", " ").lower()
            raise InvalidArgument(f"no TLS with {what}: {reason}") from error
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
    """A server is asked nothing while it starts."""
    raise ValueError


def certificate_of(transport_info: object) -> Certificate | None:
    """The verified certificate of a client, of what a transport calls `ssl_object`."""
    if not isinstance(transport_info, ssl.SSLObject | ssl.SSLSocket):
        return None
    return transport_info.getpeercert() or None
