/* Records the writes and flushes of the disks of User-Mode Linux: loaded before it by LD_PRELOAD.
 *
 * POWERCUT_LOG      the record, appended to: a header and, for a write, its bytes
 * POWERCUT_DISKS    files, separated by colons: the disks
 *
 * A write goes to its file and then to the record. A flush goes to the record only: what it covers
 * is decided by who reads it, and waiting for the disk of the host would only cost time. All disks
 * of the machine are served by one thread, so the order of the record is that of the disks.
 *
 * The kernel calls these functions on small stacks of its own, so they use no memory to speak of
 * and call nothing but the system. */

#define _GNU_SOURCE
#include <errno.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/uio.h>
#include <unistd.h>

enum { WRITE = 1, FLUSH = 2, ZERO = 3, DISKS_MAX = 32, SECTOR = 512 };

struct header {
    uint32_t kind, disk;
    uint64_t offset, length;
};

static struct { dev_t device; ino_t inode; } disks[DISKS_MAX];
static unsigned disk_count;
static int record = -1;
static long kernel; /* the process of the kernel itself; its thread for the disks is another one */

__attribute__((constructor)) static void begin(void) {
    const char *path = getenv("POWERCUT_LOG"), *disk = getenv("POWERCUT_DISKS");
    char name[4096];
    struct stat status;
    if (!path || !disk)
        return;
    while (*disk && disk_count < DISKS_MAX) {
        size_t length = strcspn(disk, ":");
        if (length >= sizeof name)
            _exit(97);
        memcpy(name, disk, length);
        name[length] = 0;
        if (stat(name, &status))
            _exit(98);
        disks[disk_count].device = status.st_dev;
        disks[disk_count++].inode = status.st_ino;
        disk += length + (disk[length] == ':');
    }
    kernel = syscall(SYS_getpid);
    record = open(path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
    if (record < 0)
        _exit(99);
}

static int disk_of(int file) {
    struct stat status;
    if (record < 0 || syscall(SYS_fstat, file, &status))
        return -1;
    for (unsigned n = 0; n < disk_count; n++)
        if (disks[n].inode == status.st_ino && disks[n].device == status.st_dev)
            return (int)n;
    return -1;
}

static void note(uint32_t kind, int disk, uint64_t offset, uint64_t length, const void *bytes) {
    struct header header = {kind, (uint32_t)disk, offset, length};
    struct iovec parts[2] = {{&header, sizeof header}, {(void *)bytes, bytes ? length : 0}};
    int saved = errno;
    ssize_t done = syscall(SYS_writev, record, parts, bytes ? 2 : 1);
    if (done != (ssize_t)(sizeof header + parts[1].iov_len))
        _exit(96); /* a record with a hole would prove nothing */
    errno = saved;
}

ssize_t pwrite64(int file, const void *bytes, size_t length, off_t offset) {
    int disk = disk_of(file);
    ssize_t done = syscall(SYS_pwrite64, file, bytes, length, offset);
    if (disk >= 0 && done > 0)
        note(WRITE, disk, (uint64_t)offset, (uint64_t)done, bytes);
    return done;
}

/* User-Mode Linux answers a flush without any call to the host: a request without segments. So the
 * library looks into the requests that the thread of the disks reads, which are addresses of these.
 * A flush is noted before the writes read together with it. None of them is answered yet, so the
 * flush need not cover them, and does cover all that were answered. */
struct request {
    void *request;
    int files[2];
    unsigned long offsets[2];
    unsigned long long offset;
    int sector_size, error, segments;
};

enum { REQUESTS = 64 }; /* as many as the thread of the disks reads at once */

ssize_t read(int file, void *bytes, size_t length) {
    ssize_t done = syscall(SYS_read, file, bytes, length);
    struct request **requests = bytes;
    if (done <= 0 || record < 0 || length != REQUESTS * sizeof *requests
        || done % sizeof *requests || syscall(SYS_getpid) == kernel)
        return done;
    for (size_t n = 0; n < done / sizeof *requests; n++)
        if (requests[n]->sector_size != SECTOR)
            _exit(95); /* another kernel, whose requests look different */
        else if (!requests[n]->segments && disk_of(requests[n]->files[0]) >= 0)
            note(FLUSH, disk_of(requests[n]->files[0]), 0, 0, 0);
    return done;
}

static int flush(int file, long call) {
    int disk = disk_of(file);
    if (disk < 0)
        return (int)syscall(call, file);
    note(FLUSH, disk, 0, 0, 0);
    return 0;
}

int fsync(int file) { return flush(file, SYS_fsync); }

int fdatasync(int file) { return flush(file, SYS_fdatasync); }

int fallocate64(int file, int mode, off_t offset, off_t length) {
    int disk = disk_of(file);
    int failed = (int)syscall(SYS_fallocate, file, mode, offset, length);
    if (disk >= 0 && !failed)
        note(ZERO, disk, (uint64_t)offset, (uint64_t)length, 0);
    return failed;
}
