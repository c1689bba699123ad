/* What a machine may do to a process, preloaded into it: steps of the wall clock, and slow fsyncs.
 *
 * $DISTURB is a file of two int64, which another process writes: microseconds by which the wall clock is off, and that
 * each fsync takes longer. $DISTURB.synced gets a line for each fsync that has returned: inode, and bytes on disk. */
#define _GNU_SOURCE
#include <fcntl.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile int64_t *page;
static int synced = -1;

static volatile int64_t *asked(void) {
    if (!page) {
        const char *name = getenv("DISTURB");
        char log[4096];
        int file = open(name, O_RDONLY | O_CLOEXEC);
        page = mmap(NULL, 16, PROT_READ, MAP_SHARED, file, 0);
        close(file);
        snprintf(log, sizeof log, "%s.synced", name);
        synced = open(log, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
    }
    return page;
}

int clock_gettime(clockid_t clock, struct timespec *at) {
    int answer = (int)syscall(SYS_clock_gettime, clock, at);
    if (answer == 0 && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t micros = at->tv_sec * 1000000LL + at->tv_nsec / 1000 + asked()[0];
        at->tv_sec = micros / 1000000;
        at->tv_nsec = (micros % 1000000) * 1000;
    }
    return answer;
}

int gettimeofday(struct timeval *restrict at, void *restrict zone) {
    struct timespec now;
    (void)zone;
    clock_gettime(CLOCK_REALTIME, &now);
    at->tv_sec = now.tv_sec;
    at->tv_usec = now.tv_nsec / 1000;
    return 0;
}

time_t time(time_t *at) {
    struct timespec now;
    clock_gettime(CLOCK_REALTIME, &now);
    if (at) *at = now.tv_sec;
    return now.tv_sec;
}

static int slowly(int file, long number) {
    struct stat about;
    char line[64];
    int known = fstat(file, &about) == 0;
    int64_t micros = asked()[1];
    if (micros > 0) usleep((useconds_t)micros);
    int answer = (int)syscall(number, file);
    if (answer == 0 && known && S_ISREG(about.st_mode) && synced >= 0) {
        int length = snprintf(line, sizeof line, "%llu %lld\n", (unsigned long long)about.st_ino, (long long)about.st_size);
        if (write(synced, line, (size_t)length) < 0) return answer;
    }
    return answer;
}

int fsync(int file) { return slowly(file, SYS_fsync); }

int fdatasync(int file) { return slowly(file, SYS_fdatasync); }
