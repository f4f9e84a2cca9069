/* Moves the wall clock of one process, for tests: preloaded, it adds an offset to every reading of the real-time clock.
 *
 * The offset, in milliseconds, is the first eight bytes of the file that FAULT_CLOCK_FILE names, as a signed number of the machine's
 * own byte order. The file is mapped, so that a test moves the clock by writing to it. All other clocks are unchanged.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <fcntl.h>
#include <stdint.h>
#include <stdlib.h>
#include <sys/mman.h>
#include <sys/time.h>
#include <time.h>
#include <unistd.h>

static volatile const int64_t *offset_ms;
static int (*real_clock_gettime)(clockid_t, struct timespec *);

__attribute__((constructor)) static void begin(void) {
    real_clock_gettime = (int (*)(clockid_t, struct timespec *))dlsym(RTLD_NEXT, "clock_gettime");
    const char *path = getenv("FAULT_CLOCK_FILE");
    int file = path ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    if (file < 0)
        return;
    void *mapped = mmap(NULL, sizeof(int64_t), PROT_READ, MAP_SHARED, file, 0);
    if (mapped != MAP_FAILED)
        offset_ms = mapped;
    close(file);
}

int clock_gettime(clockid_t clock, struct timespec *time) {
    if (!real_clock_gettime)
        begin();
    int outcome = real_clock_gettime(clock, time);
    if (outcome == 0 && offset_ms && (clock == CLOCK_REALTIME || clock == CLOCK_REALTIME_COARSE)) {
        int64_t offset = *offset_ms;
        time->tv_sec += offset / 1000;
        time->tv_nsec += offset % 1000 * 1000000;
        if (time->tv_nsec < 0) {
            time->tv_nsec += 1000000000;
            time->tv_sec -= 1;
        } else if (time->tv_nsec >= 1000000000) {
            time->tv_nsec -= 1000000000;
            time->tv_sec += 1;
        }
    }
    return outcome;
}

int gettimeofday(struct timeval *restrict time, void *restrict zone) {
    (void)zone;
    struct timespec now;
    int outcome = clock_gettime(CLOCK_REALTIME, &now);
    if (outcome == 0) {
        time->tv_sec = now.tv_sec;
        time->tv_usec = now.tv_nsec / 1000;
    }
    return outcome;
}

time_t time(time_t *seconds) {
    struct timespec now;
    if (clock_gettime(CLOCK_REALTIME, &now) != 0)
        return (time_t)-1;
    if (seconds)
        *seconds = now.tv_sec;
    return now.tv_sec;
}
