"""A wrong clock for programs that are started: a library that is preloaded. The monotonic clock stays true."""

import os
import shutil
import subprocess
from pathlib import Path

SOURCE = r"""
#define _GNU_SOURCE
#include <stdlib.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static double start, rate, loaded;

static double true_time(void) {
    struct timespec t;
    syscall(SYS_clock_gettime, CLOCK_REALTIME, &t);
    return t.tv_sec + t.tv_nsec / 1e9;
}

__attribute__((constructor)) static void load(void) {
    const char *s = getenv("CLOCK_START"), *r = getenv("CLOCK_RATE");
    loaded = true_time();
    start = s ? atof(s) : loaded;
    rate = r ? atof(r) : 1;
}

int clock_gettime(clockid_t id, struct timespec *t) {
    int result = syscall(SYS_clock_gettime, id, t);
    if (!result && (id == CLOCK_REALTIME || id == CLOCK_REALTIME_COARSE)) {
        double now = start + (true_time() - loaded) * rate;
        t->tv_sec = (time_t)now;
        t->tv_nsec = (long)((now - t->tv_sec) * 1e9);
    }
    return result;
}

time_t time(time_t *result) {
    struct timespec t;
    clock_gettime(CLOCK_REALTIME, &t);
    if (result) *result = t.tv_sec;
    return t.tv_sec;
}

int gettimeofday(struct timeval *restrict t, void *restrict zone) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    t->tv_sec = now.tv_sec;
    t->tv_usec = now.tv_nsec / 1000;
    return 0;
}
"""


def is_available() -> bool:
    return os.name == "posix" and os.uname().sysname == "Linux" and shutil.which("cc") is not None


def build(folder: Path) -> Path:
    """Compile the library."""
    source, library = folder / "clock.c", folder / "clock.so"
    source.write_text(SOURCE)
    subprocess.run(["cc", "-shared", "-fPIC", "-O1", "-o", library, source], check=True)
    return library


def environment(library: Path, start: float, rate: float = 1) -> dict[str, str]:
    """Return the variables of a program whose clock starts at a Unix time and runs at this rate."""
    return {"LD_PRELOAD": str(library), "CLOCK_START": str(start), "CLOCK_RATE": str(rate)}
