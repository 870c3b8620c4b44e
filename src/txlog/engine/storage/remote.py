"""Files outside the store: sealed files that were moved to a directory or to S3.

Such a file has an address in place of a path:

    file:///mnt/archive/<uuid>/topics/…/ledger-….parquet
    s3://bucket/prefix/<uuid>/topics/…/ledger-….parquet?endpoint_override=…&region=…&scheme=…

The text between `://` and `?` is literal, without percent-encoding. A *place* is an address up to
the uuid of the store, options included. pyarrow.fs makes the calls and finds the credentials
(environment, profile, role); they are never in an address. As with any file of the store, the
reader compares checksums. Calls may take seconds, and fail when the network does: DiskFailed; or
MissingFile when no such object exists.

A store names its files outside, and the maker of a store may name any file of this machine, or any
bucket. Opening it would reveal its content, or that it exists, and would call an address with the
credentials of this machine. So txlog opens a file only in a place that this user has named, by
`txlog admin offload` or `txlog admin confirm`, or to this process (`trust`). The places that a user
has named are recorded outside every store:

    $XDG_STATE_HOME/txlog/places/<hash of a store's path>.json   by default in ~/.local/state

A place in any record may be read: a store that was moved finds its files as before. Removing needs
more, see store/confirmed.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from functools import cache
from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

import msgspec

from txlog.base.startup.crc32c import crc32c
from txlog.base.suggest import command_line
from txlog.engine.storage.disk.posix import PosixDisk, absolute
from txlog.engine.storage.disk.protocol import Disk, File, is_of_handler
from txlog.engine.storage.segment import arrow_module
from txlog.engine.storage.user_files import names_in, read_file, state_home
from txlog.errors import DiskFailed, InvalidArgument, MissingFile, NotFound, StoreNotFound

if TYPE_CHECKING:
    from typing_extensions import Buffer

PIECE_BYTES: Final = 8 << 20  # bytes copied and compared at a time
CONNECT_SECONDS: Final = 10
RECORDS_MAX: Final = 1_000
RECORD_BYTES_MAX: Final = 1 << 20
REQUEST_SECONDS: Final = 30  # without a byte; the default of 3 is too short for a busy machine
_OPTIONS: Final = ("endpoint_override", "region", "scheme")
_SUFFIXES: Final = (".parquet", ".arrow")
_BUCKET: Final = re.compile(r"[a-z0-9][a-z0-9.\-]{1,61}[a-z0-9]")
_FORBIDDEN: Final = re.compile(r"[%?#\\\x00-\x1f\x7f]|//|(^|/)\.\.?(/|$)")


def _urls() -> Any:
    """urllib.parse, which takes 4 ms to load and is needed only for files outside the store."""
    return import_module("urllib.parse")


def is_far(path: str) -> bool:
    """Whether a file is outside the store; a path inside has no colon."""
    return "://" in path


def place_of(text: str, uuid: str) -> str:
    """The place of a store in a directory or bucket named by a user.

    text:   a directory, file:///…, or s3://bucket/prefix with the options endpoint_override,
            region and scheme
    raises: InvalidArgument
    """
    scheme, separator, location = text.partition("://")
    if not separator:
        scheme, location = "file", absolute(text)
        location, query = location.rstrip("/"), ""
    elif scheme == "file":
        location, query = _urls().unquote(location).rstrip("/"), ""
        if not location.startswith("/"):
            raise InvalidArgument(f"{text} is not absolute: file:///…")
    elif scheme == "s3":
        location, _, query = location.partition("?")
        location, query = location.rstrip("/"), _options(query)
        if "@" in location:
            raise InvalidArgument(
                "an address holds no credentials: it is stored",
                hint="set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or a profile",
            )
        if not _BUCKET.fullmatch(location.partition("/")[0]):
            raise InvalidArgument(f"{text} names no bucket: s3://bucket/prefix")
    else:
        raise InvalidArgument(f"{text} is neither a directory nor s3://bucket/prefix")
    if _FORBIDDEN.search(location):
        raise InvalidArgument(f"{text} has characters that an address cannot have")
    return f"{scheme}://{location}/{uuid}" + (f"?{query}" if query else "")


def address(place: str, path: str) -> str:
    """The address in a place of a file of the store, given its path there."""
    base, mark, query = place.partition("?")
    return f"{base}/{path}{mark}{query}"


def local_path(path: str) -> str | None:
    """The path of an address in this machine's file system; None for another, or no address."""
    return path[len("file://") :] if path.startswith("file://") else None


def is_remote(path: str) -> bool:
    """Whether a file is reached over a network, so that it has no local path."""
    return is_far(path) and local_path(path) is None


def without_options(far: str) -> str:
    """An address as users and other programs write it."""
    return far.partition("?")[0]


def open_file(disk: Disk | None, path: str) -> File:
    """Open a file to read, inside the store or outside. Raises MissingFile, DiskFailed."""
    if is_far(path):
        check_named(path)
    return open_planned(disk, path)


def open_planned(disk: Disk | None, path: str) -> File:
    """As open_file, in a process that runs a plan: the planner has checked the place."""
    if is_far(path):
        return _opened(path)
    assert disk is not None
    return disk.open(path)


def is_there(disk: Disk, path: str) -> bool:
    """Whether a file exists, inside the store or outside. Raises DiskFailed."""
    if not is_far(path):
        return disk.exists(path)
    try:
        open_far(path).close()
    except MissingFile:
        return False
    return True


def open_far(far: str) -> RemoteFile:
    """Open a file outside the store. Raises MissingFile, DiskFailed."""
    check_named(far)
    return _opened(far)


def _opened(far: str) -> RemoteFile:
    filesystem, path = located(far)
    with _mapped("open", far):
        return RemoteFile(filesystem.open_input_file(path), far)


class RemoteFile:
    """`File` outside the store; nothing is written through it."""

    __slots__ = ("_far", "_file")

    def __init__(self, file: Any, far: str) -> None:
        self._file = file
        self._far = far

    def pread(self, offset: int, length: int) -> bytes:
        with _mapped("read", self._far):
            return bytes(self._file.read_at(length, offset))

    def size(self) -> int:
        with _mapped("look at", self._far):
            return int(self._file.size())

    def close(self) -> None:
        self._file.close()

    def pwrite(self, offset: int, data: Buffer | object) -> None:
        raise DiskFailed(f"cannot change {without_options(self._far)}", path=self._far)

    def datasync(self) -> None:
        raise DiskFailed(f"cannot change {without_options(self._far)}", path=self._far)


def put(place: str, path: str, pieces: Iterable[bytes]) -> None:
    """Write a file of the store to its address whole and durably.

    It replaces an earlier, interrupted copy.
    raises: DiskFailed, and errors of the pieces: then the file at the address must not be used
    """
    far = address(place, path)
    if not place.startswith("file://"):
        _write(far, pieces)
        return
    base, _, uuid = place[len("file://") :].rpartition("/")
    disk = PosixDisk(base or "/")
    try:
        below = f"{uuid}/{path}"
        directory = below.rpartition("/")[0]
        disk.make_dirs(directory)  # private, and durable
        _write(far, pieces)
        file = disk.open(below, write=True)
        try:
            file.datasync()
        finally:
            file.close()
        disk.sync_dir(directory)
    finally:
        disk.close()


def _write(far: str, pieces: Iterable[bytes]) -> None:
    filesystem, path = located(far)
    try:
        with _mapped("write", far):
            out = filesystem.open_output_stream(path)
        with out:
            for piece in pieces:  # their errors concern the source
                with _mapped("write", far):
                    out.write(piece)
            with _mapped("write", far):
                out.close()
    except MissingFile as error:
        if error.fields.get("path") != far:
            raise
        raise DiskFailed(f"{error}: does the bucket exist?", path=far) from error


def check(far: str, size: int, crc: int) -> None:
    """Read a whole file back. Raises DiskFailed when it differs from the written bytes."""
    file = open_far(far)
    try:
        actual_crc, at = 0, 0
        while piece := file.pread(at, PIECE_BYTES):
            actual_crc = crc32c(piece, actual_crc)
            at += len(piece)
    finally:
        file.close()
    if (at, actual_crc) != (size, crc):
        raise DiskFailed(
            f"{without_options(far)} reads back differently: {at} bytes, {actual_crc:08x}", path=far
        )


def size_of(far: str) -> int:
    """The length of a file. Raises MissingFile, DiskFailed."""
    file = open_far(far)
    try:
        return file.size()
    finally:
        file.close()


def delete(place: str, far: str) -> None:
    """Remove a file of a place; harmless when it is missing. Follows no link below the place.

    raises: DiskFailed, Corruption
    """
    if place.startswith("file://"):
        base, _, uuid = place[len("file://") :].rpartition("/")
        try:
            disk = PosixDisk(base or "/")
        except StoreNotFound:  # no mount, so there is no such file
            return
        try:
            disk.unlink(f"{uuid}{far[len(place) :]}")
        finally:
            disk.close()
        return
    filesystem, path = located(far)
    try:
        with _mapped("remove", far):
            filesystem.delete_file(path)
    except MissingFile:
        return


def listed(place: str) -> list[tuple[str, int]]:
    """Every file of a place, with its bytes. Raises DiskFailed."""
    filesystem, path = located(place)
    fs = arrow_module("pyarrow.fs")
    base, mark, query = place.partition("?")
    with _mapped("list", place):
        infos = filesystem.get_file_info(
            fs.FileSelector(path, allow_not_found=True, recursive=True)
        )
    return [
        (f"{base}{info.path[len(path) :]}{mark}{query}", info.size)
        for info in infos
        if info.type == fs.FileType.File
    ]


def check_place(place: str) -> None:
    """Raise unless a place can be listed; its directory must exist: it may be a mount."""
    if place.startswith("file://"):
        directory = place[len("file://") :].rpartition("/")[0]
        try:
            PosixDisk(directory or "/").close()
        except StoreNotFound as error:
            raise NotFound(f"no such directory: {directory}", path=directory) from error
    listed(place)


def located(far: str) -> tuple[Any, str]:
    """The pyarrow file system of an address, and the path that it has there."""
    scheme, _, location = far.partition("://")
    path, _, query = location.partition("?")
    return _filesystem(scheme, path.partition("/")[0], query), path


@cache
def _filesystem(scheme: str, bucket: str, query: str) -> Any:
    fs = arrow_module("pyarrow.fs")
    if scheme == "file":
        return fs.LocalFileSystem()
    options = dict(_urls().parse_qsl(query))
    with _mapped("reach", f"{scheme}://{bucket}"):
        if not {"region", "endpoint_override"} & options.keys():
            options["region"] = fs.resolve_s3_region(bucket)
        return fs.S3FileSystem(
            **options, connect_timeout=CONNECT_SECONDS, request_timeout=REQUEST_SECONDS
        )


def _options(query: str) -> str:
    """The options of an address in a fixed order."""
    options = dict(_urls().parse_qsl(query, keep_blank_values=True))
    for name in options:
        if name not in _OPTIONS:
            raise InvalidArgument(f"{name} is not an option of an address: {', '.join(_OPTIONS)}")
    encoded: str = _urls().urlencode(sorted(options.items()), safe=":/")
    return encoded


@contextmanager
def _mapped(action: str, far: str) -> Iterator[None]:
    """Raise our errors in place of pyarrow's."""
    shown_path = without_options(far)
    try:
        yield
    except FileNotFoundError as error:
        raise MissingFile(f"cannot {action} {shown_path}: no such file", path=far) from error
    except (OSError, ValueError) as error:
        if is_of_handler(error):
            raise
        reason = " ".join(str(error).split())
        raise DiskFailed(
            f"cannot {action} {shown_path}: {reason}",
            hint="is it reachable, and are the credentials set?",
            path=far,
        ) from error


_trusted = set[str]()  # places of this process: from records that it has read, or given to `trust`


class PlaceRecord(msgspec.Struct):
    """The content of a record: path and uuid of a store, and the places that its user has named.

    places: files there may be read, and removed by this store
    read:   files there may be read
    """

    store: str
    uuid: str
    places: list[str] = []
    read: list[str] = []


def record_directory() -> str | None:
    """The directory of this user's records; None: this user has no directory for state."""
    home = state_home()
    return None if home is None else f"{home}/txlog/places"


def read_record(path: str) -> PlaceRecord | None:
    """A record; None if there is none, or it cannot be decoded. Raises DiskFailed."""
    data = read_file(path, RECORD_BYTES_MAX)
    try:
        return None if data is None else msgspec.json.decode(data, type=PlaceRecord)
    except msgspec.DecodeError:
        return None


def trust(places: Iterable[str]) -> None:
    """Let this process open files in these places, without a record."""
    _trusted.update(places)


def place_in(places: Iterable[str], uuid: str, far: str) -> str | None:
    """The first place that contains an address; None: no place does, or no store names a file so.

    uuid: of the store, and the name of its directory in the place; the file must be below it
    """
    for place in places:
        base, _, options = place.partition("?")
        path, _, of_file = far.partition("?")
        parts = path.removeprefix(f"{base}/").split("/")
        if (
            base.endswith(f"/{uuid}")
            and path.startswith(f"{base}/topics/")
            and options == of_file
            and parts[-1].endswith(_SUFFIXES)
            and not {"", ".", ".."}.intersection(parts)
        ):
            return place
    return None


def check_named(far: str) -> None:
    """Raise unless this user has named the place of an outside file. Looks at no file outside.

    raises: DiskFailed
    """
    if _is_named(far):
        return
    for record in _records():
        _trusted.update(record.places, record.read)
    if not _is_named(far):
        raise DiskFailed(
            f"{far.partition('?')[0]} is not opened: only the store names this place",
            hint=_hint(far),
            path=far,
        )


def _is_named(far: str) -> bool:
    return place_in(_trusted, _split(far)[1], far) is not None


def _split(far: str) -> tuple[str, str, str]:
    """(directory or bucket, uuid, options) of an address, if a file of a store has it."""
    path, mark, options = far.partition("?")
    base, _, uuid = path.partition("/topics/")[0].rpartition("/")
    return base, uuid, mark + options


def _hint(far: str) -> str:
    base, uuid, options = _split(far)
    if place_in([f"{base}/{uuid}{options}"], uuid, far) is None:
        return "no offload puts a file there: do not trust this store"
    place = base + options
    is_plain = place.isprintable() and "'" not in place  # the maker of a store chose these words
    line = command_line("admin confirm", place if is_plain else "PLACE")
    return f"if you or yours have offloaded to there: {line}"


def _records() -> Iterator[PlaceRecord]:
    directory = record_directory()
    if directory is None:
        return
    for name in names_in(directory, RECORDS_MAX):
        record = read_record(f"{directory}/{name}") if name.endswith(".json") else None
        if record is not None:
            yield record
