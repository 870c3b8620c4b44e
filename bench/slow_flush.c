/* Makes every flush take FLUSH_MS milliseconds longer: a disk without a write cache. */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <stdlib.h>
#include <time.h>
#include <unistd.h>

static int slowly(const char *name, int descriptor) {
    int (*flush)(int) = (int (*)(int))dlsym(RTLD_NEXT, name);
    const char *text = getenv("FLUSH_MS");
    double seconds = text ? atof(text) / 1000 : 0;
    struct timespec rest = {(time_t)seconds, (long)((seconds - (time_t)seconds) * 1e9)};
    int answer = flush(descriptor);
    if (seconds > 0) nanosleep(&rest, NULL);
    return answer;
}

int fdatasync(int descriptor) { return slowly("fdatasync", descriptor); }
int fsync(int descriptor) { return slowly("fsync", descriptor); }
