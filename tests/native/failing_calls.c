/* Preloaded into a process of test_failing_calls.py: the k-th call of a kind fails, as the kernel may let it fail.
 *
 * Only calls of the thread that has armed it count.  Allocations count where the package's own C asks for them: what
 * CPython does without memory is not ours.
 */
#define _GNU_SOURCE
#include <dirent.h>
#include <dlfcn.h>
#include <errno.h>
#include <fcntl.h>
#include <stdarg.h>
#include <stdio.h>
#include <string.h>
#include <sys/mman.h>
#include <sys/syscall.h>
#include <unistd.h>

enum { DESCRIPTORS = 1, ROOM = 2, MEMORY = 4, SIGNAL = 8 };

static __thread int armed;
static int kind, error, left;
static char failed[128];

void failing_arm(int which, int with, int k) {
    kind = which;
    error = with;
    left = k;
    failed[0] = 0;
    armed = 1;
}
const char *failing_disarm(void) { /* the call that has failed, or "" if there were fewer calls */
    armed = 0;
    return failed;
}

static int fails(const char *call, int kinds, const char *about) {
    if (!armed || !(kinds & kind) || --left) return 0;
    snprintf(failed, sizeof failed, "%s %s", call, about);
    errno = error;
    return 1;
}

static int opened(int at, const char *path, int flags, mode_t mode) {
    int kinds = DESCRIPTORS | MEMORY | SIGNAL | ((flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? ROOM : 0);
    if (fails("open", kinds, path)) return -1;
    return (int)syscall(SYS_openat, at, path, flags, mode);
}
#define MODE                                                                                       \
    va_list more;                                                                                  \
    va_start(more, flags);                                                                         \
    mode_t mode = (flags & O_CREAT) || (flags & O_TMPFILE) == O_TMPFILE ? va_arg(more, mode_t) : 0; \
    va_end(more)
int open(const char *path, int flags, ...) { MODE; return opened(AT_FDCWD, path, flags, mode); }
int open64(const char *path, int flags, ...) { MODE; return opened(AT_FDCWD, path, flags, mode); }
int openat(int at, const char *path, int flags, ...) { MODE; return opened(at, path, flags, mode); }
int openat64(int at, const char *path, int flags, ...) { MODE; return opened(at, path, flags, mode); }

DIR *opendir(const char *path) {
    DIR *(*real)(const char *) = (DIR * (*)(const char *)) dlsym(RTLD_NEXT, "opendir");
    return fails("opendir", DESCRIPTORS | MEMORY, path) ? NULL : real(path);
}

static int controlled(int fd, int command, long argument) {
    int kinds = command == F_DUPFD || command == F_DUPFD_CLOEXEC ? DESCRIPTORS : command == F_OFD_SETLK ? MEMORY : 0;
    char about[16];
    snprintf(about, sizeof about, "%d", command);
    if (fails("fcntl", kinds, about)) return -1;
    return (int)syscall(SYS_fcntl, fd, command, argument);
}
#define ARGUMENT                                                                                   \
    va_list more;                                                                                  \
    va_start(more, command);                                                                       \
    long argument = va_arg(more, long);                                                            \
    va_end(more)
int fcntl(int fd, int command, ...) { ARGUMENT; return controlled(fd, command, argument); }
int fcntl64(int fd, int command, ...) { ARGUMENT; return controlled(fd, command, argument); }

static void *mapped(void *at, size_t n, int protection, int flags, int fd, off_t offset) {
    if (fd >= 0 && fails("mmap", MEMORY, "file")) return MAP_FAILED;
    return (void *)syscall(SYS_mmap, at, n, protection, flags, fd, offset);
}
void *mmap(void *at, size_t n, int p, int f, int fd, off_t o) { return mapped(at, n, p, f, fd, o); }
void *mmap64(void *at, size_t n, int p, int f, int fd, off_t o) { return mapped(at, n, p, f, fd, o); }

static int allocated(int fd, off_t at, off_t n) { /* returns the error */
    if (fails("posix_fallocate", ROOM | MEMORY | SIGNAL, "")) return errno;
    return syscall(SYS_fallocate, fd, 0, at, n) == 0 ? 0 : errno;
}
int posix_fallocate(int fd, off_t at, off_t n) { return allocated(fd, at, n); }
int posix_fallocate64(int fd, off_t at, off_t n) { return allocated(fd, at, n); }

int linkat(int from, const char *old, int to, const char *new, int flags) {
    if (fails("linkat", ROOM | MEMORY, new)) return -1;
    return (int)syscall(SYS_linkat, from, old, to, new, flags);
}
int eventfd(unsigned count, int flags) {
    return fails("eventfd", DESCRIPTORS | MEMORY, "") ? -1 : (int)syscall(SYS_eventfd2, count, flags);
}

void *__libc_calloc(size_t n, size_t nbytes);
void *__libc_malloc(size_t nbytes);
static int is_ours(void *caller) {
    Dl_info where;
    return armed && dladdr(caller, &where) && where.dli_fname && strstr(where.dli_fname, "native/_core");
}
void *calloc(size_t n, size_t nbytes) {
    if (is_ours(__builtin_return_address(0)) && fails("calloc", MEMORY, "")) return NULL;
    return __libc_calloc(n, nbytes);
}
void *malloc(size_t nbytes) {
    if (is_ours(__builtin_return_address(0)) && fails("malloc", MEMORY, "")) return NULL;
    return __libc_malloc(nbytes);
}
