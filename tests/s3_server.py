"""Owns a real S3 interface on this machine: moto's server, in a process of its own."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from threading import Thread

import pyarrow.fs
import pytest

from tests.harness import HOUR_S, Child

BUCKET = "archive"


@contextmanager
def s3_server(host: str = "127.0.0.1") -> Iterator[str]:
    """A context with a server that has an empty bucket; yields the address to offload to."""
    command = [sys.executable, "-u", "-m", "moto.server", "-H", host, "-p", "0"]
    with (
        pytest.MonkeyPatch.context() as patched,
        Child(command, stream="stderr", bound_s=HOUR_S) as server,
    ):
        patched.setenv("AWS_ACCESS_KEY_ID", "any")
        patched.setenv("AWS_SECRET_ACCESS_KEY", "any")
        patched.setenv("AWS_EC2_METADATA_DISABLED", "true")
        match = re.search(r"http://([\d.]+:\d+)", server.until("http://"))
        assert match is not None
        Thread(target=server.end, daemon=True).start()  # a full pipe would stop it
        options = f"endpoint_override={match[1]}&region=us-east-1&scheme=http"
        filesystem, _ = pyarrow.fs.FileSystem.from_uri(
            f"s3://{BUCKET}?{options}&allow_bucket_creation=true"
        )
        filesystem.create_dir(BUCKET)
        yield f"s3://{BUCKET}/txlog?{options}"
