/* Injects disk faults into one process, for tests: preloaded, it intercepts the calls that read, write and sync files.
 *
 * FAULT_DISK_RULES names a file with one rule a line:
 *
 *   <call> <part of a path> <effect>
 *
 * The call is `read`, `write`, `sync`, `make` (a folder) or `rename` (from that path). The effect is `ENOSPC`, `EIO`, `short` (a write takes half of its bytes, the next one fails with
 * ENOSPC) or `delay=<milliseconds>`; with the prefix `once:` it applies to the first call only. A test changes the rules by replacing the
 * file, which the library reads again when its time or size has changed.
 *
 * FAULT_DISK_UNDO names a file to which every write to a path that contains FAULT_DISK_UNDO_PATH is recorded with the bytes that were there
 * before, and every sync. After a kill, a test can take back writes that were not synced, as a power cut would.
 */
#define _GNU_SOURCE
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <pthread.h>
#include <stdint.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/types.h>
#include <sys/uio.h>
#include <time.h>
#include <unistd.h>

#define RULES_MAX 32
#define TEXT_MAX 256

enum call { CALL_READ, CALL_WRITE, CALL_SYNC, CALL_MAKE, CALL_RENAME, CALLS };
enum effect { EFFECT_NONE, EFFECT_ERROR, EFFECT_SHORT, EFFECT_DELAY };

struct rule {
    enum call call;
    char path[TEXT_MAX];
    enum effect effect;
    int error;
    long delay_ms;
    int once;
    int spent;
};

static pthread_mutex_t lock = PTHREAD_MUTEX_INITIALIZER;
static struct rule rules[RULES_MAX];
static int rule_count;
static struct timespec rules_time;
static off_t rules_size = -1;
static const char *rules_path, *undo_path, *undo_part;
static int undo_file = -1;

static ssize_t (*real_read)(int, void *, size_t);
static ssize_t (*real_pread)(int, void *, size_t, off_t);
static ssize_t (*real_write)(int, const void *, size_t);
static ssize_t (*real_pwrite)(int, const void *, size_t, off_t);
static ssize_t (*real_writev)(int, const struct iovec *, int);
static ssize_t (*real_pwritev)(int, const struct iovec *, int, off_t);
static int (*real_fsync)(int);
static int (*real_fdatasync)(int);
static int (*real_syncfs)(int);
static int (*real_mkdir)(const char *, mode_t);
static int (*real_rename)(const char *, const char *);

static void find(void) {
    *(void **)&real_read = dlsym(RTLD_NEXT, "read");
    *(void **)&real_pread = dlsym(RTLD_NEXT, "pread64");
    *(void **)&real_write = dlsym(RTLD_NEXT, "write");
    *(void **)&real_pwrite = dlsym(RTLD_NEXT, "pwrite64");
    *(void **)&real_writev = dlsym(RTLD_NEXT, "writev");
    *(void **)&real_pwritev = dlsym(RTLD_NEXT, "pwritev");
    *(void **)&real_fsync = dlsym(RTLD_NEXT, "fsync");
    *(void **)&real_fdatasync = dlsym(RTLD_NEXT, "fdatasync");
    *(void **)&real_syncfs = dlsym(RTLD_NEXT, "syncfs");
    *(void **)&real_mkdir = dlsym(RTLD_NEXT, "mkdir");
    *(void **)&real_rename = dlsym(RTLD_NEXT, "rename");
}

__attribute__((constructor)) static void begin(void) {
    if (!real_write)
        find();
    rules_path = getenv("FAULT_DISK_RULES");
    undo_path = getenv("FAULT_DISK_UNDO");
    undo_part = getenv("FAULT_DISK_UNDO_PATH");
    if (undo_path && undo_part)
        undo_file = open(undo_path, O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0600);
}

static int path_of(int file, char *path) {
    char link[64];
    snprintf(link, sizeof link, "/proc/self/fd/%d", file);
    ssize_t length = readlink(link, path, TEXT_MAX * 4 - 1);
    if (length <= 0 || path[0] != '/')
        return 0;
    path[length] = 0;
    return 1;
}

static const char *const call_names[CALLS] = {"read", "write", "sync", "make", "rename"};

static int parse(char *line, struct rule *rule) {
    char call[16], effect[64];
    memset(rule, 0, sizeof *rule);
    if (sscanf(line, "%15s %255s %63s", call, rule->path, effect) != 3)
        return 0;
    int known = 0;
    while (known < CALLS && strcmp(call, call_names[known]) != 0)
        known++;
    /* A test with a misspelt rule would inject nothing, and pass. */
    if (known == CALLS)
        abort();
    rule->call = (enum call)known;
    char *word = effect;
    if (strncmp(word, "once:", 5) == 0) {
        rule->once = 1;
        word += 5;
    }
    if (strcmp(word, "short") == 0) {
        rule->effect = EFFECT_SHORT;
    } else if (strncmp(word, "delay=", 6) == 0) {
        rule->effect = EFFECT_DELAY;
        rule->delay_ms = atol(word + 6);
    } else {
        rule->effect = EFFECT_ERROR;
        rule->error = strcmp(word, "ENOSPC") == 0 ? ENOSPC : EIO;
    }
    return 1;
}

/* Reads the rules again if they have changed. The caller holds the lock. */
static void refresh(void) {
    struct stat now;
    if (!rules_path || stat(rules_path, &now) != 0) {
        rule_count = 0;
        rules_size = -1;
        return;
    }
    if (now.st_size == rules_size && now.st_mtim.tv_sec == rules_time.tv_sec && now.st_mtim.tv_nsec == rules_time.tv_nsec)
        return;
    rules_size = now.st_size;
    rules_time = now.st_mtim;
    rule_count = 0;
    char text[RULES_MAX * TEXT_MAX];
    int file = open(rules_path, O_RDONLY | O_CLOEXEC);
    ssize_t length = file < 0 ? -1 : real_read(file, text, sizeof text - 1);
    if (file >= 0)
        close(file);
    if (length < 0)
        return;
    text[length] = 0;
    char *rest = NULL;
    for (char *line = strtok_r(text, "\n", &rest); line && rule_count < RULES_MAX; line = strtok_r(NULL, "\n", &rest))
        if (parse(line, &rules[rule_count]))
            rule_count++;
}

/* The effect on a call for an open file, or for a name without one; a delay has passed when this returns. */
static struct rule effect_of(enum call call, int file, const char *name) {
    struct rule found = {0};
    char open_path[TEXT_MAX * 4];
    const char *path = name ? name : open_path;
    if (!rules_path)
        return found;
    pthread_mutex_lock(&lock);
    refresh();
    if (rule_count > 0 && (name || path_of(file, open_path))) {
        for (int at = 0; at < rule_count; at++) {
            struct rule *rule = &rules[at];
            if (rule->call != call || rule->spent || !strstr(path, rule->path))
                continue;
            rule->spent = rule->once;
            found = *rule;
            if (rule->effect == EFFECT_SHORT) {
                rule->effect = EFFECT_ERROR;
                rule->error = ENOSPC;
            }
            break;
        }
    }
    pthread_mutex_unlock(&lock);
    if (found.effect == EFFECT_DELAY) {
        struct timespec pause = {found.delay_ms / 1000, found.delay_ms % 1000 * 1000000};
        nanosleep(&pause, NULL);
    }
    return found;
}

static struct rule effect_on(enum call call, int file) { return effect_of(call, file, NULL); }

/* One note: kind (1 a write, 2 a sync of the file, 3 a sync of all files), length of the path, position, size of the file before, bytes; then the path and the bytes that were there. */
struct note {
    uint32_t kind;
    uint32_t path;
    uint64_t position;
    uint64_t size;
    uint64_t bytes;
};

static void note(uint32_t kind, int file, off_t position, size_t bytes) {
    char path[TEXT_MAX * 4];
    struct stat now;
    if (undo_file < 0 || !path_of(file, path) || !strstr(path, undo_part) || fstat(file, &now) != 0)
        return;
    size_t there = position < now.st_size ? (size_t)(now.st_size - position) : 0;
    if (there > bytes)
        there = bytes;
    size_t path_bytes = strlen(path);
    char *text = malloc(sizeof(struct note) + path_bytes + there);
    if (!text)
        abort();
    /* A file that is open for writing only is read through its path. */
    int old = there ? open(path, O_RDONLY | O_CLOEXEC) : -1;
    ssize_t length = old < 0 ? 0 : real_pread(old, text + sizeof(struct note) + path_bytes, there, position);
    if (old >= 0)
        close(old);
    struct note head = {kind, (uint32_t)path_bytes, (uint64_t)position, (uint64_t)now.st_size, (uint64_t)(length > 0 ? length : 0)};
    memcpy(text, &head, sizeof head);
    memcpy(text + sizeof head, path, path_bytes);
    size_t total = sizeof head + path_bytes + head.bytes;
    if (real_write(undo_file, text, total) != (ssize_t)total)
        abort();
    free(text);
}

static off_t position_of(int file) {
    int flags = fcntl(file, F_GETFL);
    struct stat now;
    if (flags >= 0 && flags & O_APPEND && fstat(file, &now) == 0)
        return now.st_size;
    return lseek(file, 0, SEEK_CUR);
}

static size_t size_of(const struct iovec *pieces, int count) {
    size_t size = 0;
    for (int at = 0; at < count; at++)
        size += pieces[at].iov_len;
    return size;
}

#define FAIL(rule)                                                                                                                     \
    do {                                                                                                                               \
        if ((rule).effect == EFFECT_ERROR) {                                                                                           \
            errno = (rule).error;                                                                                                      \
            return -1;                                                                                                                 \
        }                                                                                                                              \
    } while (0)

static size_t taken(struct rule *rule, size_t bytes) { return rule->effect == EFFECT_SHORT && bytes > 1 ? bytes / 2 : bytes; }

ssize_t write(int file, const void *bytes, size_t count) {
    if (!real_write)
        find();
    if (file == undo_file && file >= 0)
        return real_write(file, bytes, count);
    struct rule rule = effect_on(CALL_WRITE, file);
    FAIL(rule);
    count = taken(&rule, count);
    note(1, file, position_of(file), count);
    return real_write(file, bytes, count);
}

ssize_t pwrite64(int file, const void *bytes, size_t count, off_t position) {
    if (!real_pwrite)
        find();
    struct rule rule = effect_on(CALL_WRITE, file);
    FAIL(rule);
    count = taken(&rule, count);
    note(1, file, position, count);
    return real_pwrite(file, bytes, count, position);
}

ssize_t pwrite(int file, const void *bytes, size_t count, off_t position) { return pwrite64(file, bytes, count, position); }

ssize_t writev(int file, const struct iovec *pieces, int count) {
    if (!real_writev)
        find();
    struct rule rule = effect_on(CALL_WRITE, file);
    FAIL(rule);
    note(1, file, position_of(file), size_of(pieces, count));
    return real_writev(file, pieces, count);
}

ssize_t pwritev(int file, const struct iovec *pieces, int count, off_t position) {
    if (!real_pwritev)
        find();
    struct rule rule = effect_on(CALL_WRITE, file);
    FAIL(rule);
    note(1, file, position, size_of(pieces, count));
    return real_pwritev(file, pieces, count, position);
}

ssize_t pwritev64(int file, const struct iovec *pieces, int count, off_t position) { return pwritev(file, pieces, count, position); }

ssize_t read(int file, void *bytes, size_t count) {
    if (!real_read)
        find();
    struct rule rule = effect_on(CALL_READ, file);
    FAIL(rule);
    return real_read(file, bytes, count);
}

ssize_t pread64(int file, void *bytes, size_t count, off_t position) {
    if (!real_pread)
        find();
    struct rule rule = effect_on(CALL_READ, file);
    FAIL(rule);
    return real_pread(file, bytes, count, position);
}

ssize_t pread(int file, void *bytes, size_t count, off_t position) { return pread64(file, bytes, count, position); }

int fsync(int file) {
    if (!real_fsync)
        find();
    struct rule rule = effect_on(CALL_SYNC, file);
    FAIL(rule);
    int outcome = real_fsync(file);
    note(2, file, 0, 0);
    return outcome;
}

int fdatasync(int file) {
    if (!real_fdatasync)
        find();
    struct rule rule = effect_on(CALL_SYNC, file);
    FAIL(rule);
    int outcome = real_fdatasync(file);
    note(2, file, 0, 0);
    return outcome;
}

int syncfs(int file) {
    if (!real_syncfs)
        find();
    struct rule rule = effect_on(CALL_SYNC, file);
    FAIL(rule);
    int outcome = real_syncfs(file);
    note(3, file, 0, 0);
    return outcome;
}

int mkdir(const char *path, mode_t mode) {
    if (!real_mkdir)
        find();
    struct rule rule = effect_of(CALL_MAKE, -1, path);
    FAIL(rule);
    return real_mkdir(path, mode);
}

int rename(const char *from, const char *to) {
    if (!real_rename)
        find();
    struct rule rule = effect_of(CALL_RENAME, -1, from);
    FAIL(rule);
    return real_rename(from, to);
}
