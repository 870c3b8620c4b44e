"""Owns making the directory of a store, and what there is to know of a place before it is one."""

from __future__ import annotations

import grp
import os
from collections.abc import Container
from contextlib import closing, suppress

from txlog.engine.storage.disk.disk_file import Handle
from txlog.engine.storage.disk.locks import read_proc
from txlog.engine.storage.disk.posix import DIRECTORY, open_root
from txlog.engine.storage.disk.protocol import TEMPORARY_PREFIX, failure
from txlog.errors import AlreadyExists, DiskFailed, InvalidArgument, NotAllowed

_NETWORK = frozenset({"nfs", "nfs4", "cifs", "smb3", "smbfs", "9p", "fuse.sshfs", "afs", "ceph"})


def create_root(
    path: str, shared_group: str | None = None, *, allow_unsafe: bool = False,
    may_hold: Container[str] = (),
) -> None:  # fmt: skip
    """Make the directory of a store, private or shared with a group; an empty one will do.

    may_hold: names that may be there, beside temporary ones
    raises:   AlreadyExists (not empty), NotAllowed (network file system), InvalidArgument;
              DiskFailed where no directory can be made, as in /proc
    """
    try:
        group = -1 if shared_group is None else grp.getgrnam(shared_group).gr_gid
    except KeyError as error:
        raise InvalidArgument(f"no such group: {shared_group}") from error
    above = [os.path.dirname(os.path.abspath(path))]
    while not os.path.isdir(above[-1]) and above[-1] != "/":
        above.append(os.path.dirname(above[-1]))
    try:
        _make(path, above)
        if not allow_unsafe and (kind := filesystem(path)) in _NETWORK:
            reason = f"{path} is on a network file system ({kind})"
            raise NotAllowed(reason, hint="--allow-unsafe-fs, without promises", path=path)
        with closing(Handle(open_root(path), path)) as root:
            held = [one for one in os.listdir(root.fd) if one not in may_hold]
            if not all(one.startswith(TEMPORARY_PREFIX) for one in held):
                raise AlreadyExists(f"not an empty directory: {path}", path=path)
            if shared_group is not None:
                os.fchown(root.fd, -1, group)
            os.fchmod(root.fd, 0o700 if shared_group is None else 0o2770)
        for directory in above:
            with suppress(PermissionError):  # one we may pass through but not read
                fd = os.open(directory, DIRECTORY & ~os.O_NOFOLLOW)
                with closing(Handle(fd, directory)):
                    os.fsync(fd)
    except (FileExistsError, NotADirectoryError) as error:
        raise AlreadyExists(f"not a directory: {path}", path=path) from error
    except FileNotFoundError as error:  # of what was to be made nothing is missing, it is refused
        raise DiskFailed(
            f"cannot create {path}: the file system takes no directory there", path=path,
            errno="ENOENT",
        ) from error  # fmt: skip
    except OSError as error:
        raise failure(error, "create", path) from error


def _make(path: str, above: list[str]) -> None:
    """Make a directory and those above it, the topmost last; one that is there will do.

    os.makedirs calls itself for each level, and a name may have thousands.
    """
    with suppress(FileNotFoundError):
        os.stat(os.path.abspath(path))  # a name that is too long is told before a level is made
    for directory in reversed(above):
        with suppress(FileExistsError):
            os.mkdir(directory)
    try:
        os.mkdir(path, 0o700)
    except FileExistsError:
        if not os.path.isdir(path):
            raise


def filesystem(path: str) -> str:
    """Return the kernel's name for the kind of file system path is on, "" when unknown."""
    device = os.stat(path).st_dev
    number = f"{os.major(device)}:{os.minor(device)}"
    for line in read_proc("/proc/self/mountinfo").decode(errors="replace").splitlines():
        before, _, after = line.partition(" - ")
        if before.split()[2:3] == [number]:
            return after.split()[0]
    return ""


def is_there(path: str, name: str) -> bool:
    """True when the directory has something of that name, of whatever kind."""
    return os.path.exists(os.path.join(path, name))
