/* The variables of the environment, devices, and contexts. */
#define _GNU_SOURCE
#include "fake_libcuda.h"

#include <fcntl.h>

/* ---- what the environment says --------------------------------------------------------------- */

/* The number behind ",name=" in a list. */
static int listed(const char *variable, const char *name, int otherwise) {
    char wanted[96];
    const char *list = getenv(variable);
    snprintf(wanted, sizeof wanted, ",%s=", name);
    const char *found = list ? strstr(list, wanted) : NULL;
    return found ? atoi(found + strlen(wanted)) : otherwise;
}

int called(const char *name, const void *stream) {
    static _Atomic int log_fd = -1;
    const char *path = getenv("FAKE_CUDA_LOG");
    char line[128];
    if (path) {
        if (log_fd < 0) log_fd = open(path, O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC, 0600);
        const int n = snprintf(line, sizeof line, "%d %s %zu\n", getpid(), name, (size_t)stream);
        if (write(log_fd, line, (size_t)n) != n) abort();
    }
    return listed("FAKE_CUDA_REFUSES", name, 0);
}

/* ---- devices and contexts -------------------------------------------------------------------- */

_Thread_local uintptr_t stack[64];
_Thread_local int depth;

int cuInit(unsigned flags) { CALLED; return (int)flags; }
int cuDeviceGetCount(int *n) { CALLED; *n = DEVICES; return 0; }
int cuGetErrorName(int status, const char **name) {
    static _Thread_local char text[32];
    snprintf(text, sizeof text, "CUDA_ERROR_%d", status);
    *name = text;
    return 0;
}
int cuDeviceGetAttribute(int *value, int attribute, int device) {
    char name[16];
    CALLED;
    snprintf(name, sizeof name, "%d", attribute);
    *value = listed("FAKE_CUDA_ATTRIBUTES", name, attribute != CU_INTEGRATED);
    return device < DEVICES ? 0 : 101;
}
int cuDeviceGetUuid_v2(void *uuid, int device) {
    CALLED;
    memset(uuid, 0, 16);
    ((uint8_t *)uuid)[15] = (uint8_t)(device + 1);
    return 0;
}
int cuDeviceCanAccessPeer(int *able, int device, int other) {
    CALLED;
    *able = device != other;
    return 0;
}
int cuCtxEnablePeerAccess(void *context, unsigned flags) { CALLED; return context && !flags ? 0 : 1; }
int cuThreadExchangeStreamCaptureMode(int *mode) { CALLED; return *mode < 0 || *mode > 2; }
int cuDevicePrimaryCtxRetain(void **context, int device) {
    CALLED;
    *context = (void *)(uintptr_t)(FIRST + device);
    return 0;
}
int cuDevicePrimaryCtxRelease_v2(int device) { CALLED; return device < DEVICES ? 0 : 101; }
int cuCtxGetDevice(int *device) {
    CALLED;
    if (!depth || !stack[depth - 1]) return CU_INVALID_CONTEXT;
    *device = (int)(stack[depth - 1] - FIRST);
    return 0;
}
int cuCtxSetCurrent(void *context) {
    CALLED;
    if (!depth) depth = 1;
    stack[depth - 1] = (uintptr_t)context;
    return 0;
}
int cuCtxPushCurrent_v2(void *context) {
    CALLED;
    stack[depth++] = (uintptr_t)context;
    return 0;
}
int cuCtxPopCurrent_v2(void **context) {
    called(__func__, NULL);
    depth--;
    if (context) *context = (void *)stack[depth];
    return 0;
}
