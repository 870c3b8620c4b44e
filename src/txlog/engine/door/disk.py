"""Files of the store, files of the user, and offloaded files."""

from txlog.engine.storage.disk.libc import share_heap
from txlog.engine.storage.disk.locks import PidFile
from txlog.engine.storage.disk.posix import (
    PosixDisk,
    absolute,
    create_root,
    descriptor_limit,
    filesystem,
    is_there,
    usage,
)
from txlog.engine.storage.disk.protocol import ACTING, Disk, File, Stream, is_of_handler
from txlog.engine.storage.remote import (
    check_place,
    is_far,
    is_remote,
    local_path,
    place_of,
    size_of,
    trust,
    without_options,
)
from txlog.engine.storage.user_files import (
    exchange_directories,
    make_directory,
    move_directory,
    remove_files,
    rename_file,
    replace_file,
    replacing,
)
from txlog.engine.store.confirmed import confirm
