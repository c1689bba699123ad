/* The clock of a simulated server: wall and monotonic microseconds, read from a page that the simulator writes. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *page;

static volatile int64_t *now(void) {
    if (!page) {
        int file = open(getenv("SIMCLOCK"), O_RDONLY);
        page = mmap(NULL, 16, PROT_READ, MAP_SHARED, file, 0);
        close(file);
    }
    return page;
}

static void split(int64_t micros, struct timespec *at) {
    at->tv_sec = micros / 1000000;
    at->tv_nsec = (micros % 1000000) * 1000;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    switch (clock) {
    case CLOCK_REALTIME:
    case CLOCK_REALTIME_COARSE:
        split(now()[0], at);
        return 0;
    case CLOCK_MONOTONIC:
    case CLOCK_MONOTONIC_RAW:
    case CLOCK_MONOTONIC_COARSE:
    case CLOCK_BOOTTIME:
        split(now()[1], at);
        return 0;
    default:
        return (int)syscall(SYS_clock_gettime, clock, at);
    }
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    (void)zone;
    at->tv_sec = now()[0] / 1000000;
    at->tv_usec = now()[0] % 1000000;
    return 0;
}

time_t time(time_t *at) {
    time_t seconds = now()[0] / 1000000;
    if (at) *at = seconds;
    return seconds;
}
