/* Who a process is, as /proc tells. */
#define _GNU_SOURCE
#include "process.h"

#include <fcntl.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

/* The start time (/proc/PID/stat field 22) and the state of a process. 0 if there is no such
 * process, or if /proc hides it. */
uint64_t gr_process_start(pid_t pid, char *state) {
    char path[64], line[1024];
    snprintf(path, sizeof path, "/proc/%d/stat", (int)pid);
    int fd = open(path, O_RDONLY | O_CLOEXEC);
    if (fd < 0) return 0;
    ssize_t n = read(fd, line, sizeof line - 1);
    close(fd);
    if (n <= 0) return 0;
    line[n] = 0;
    char *at = strrchr(line, ')'); /* the command's name may contain anything, even ')' */
    if (!at || at[1] != ' ') return 0;
    if (state) *state = at[2];
    for (int field = 2; at && field < 22; field++) at = strchr(at + 1, ' ');
    return at ? strtoull(at + 1, NULL, 10) : 0;
}

uint64_t gr_pid_namespace(void) {
    struct stat st;
    return stat("/proc/self/ns/pid", &st) == 0 ? (uint64_t)st.st_ino : 0;
}

int gr_pidfd(pid_t pid) { return (int)syscall(SYS_pidfd_open, pid, 0); }
