/* What GStreamer's CUDA library asks of libcuda.so.1 beside fake_libcuda, of which this is a part.
 *
 * Contexts of its own are those of the GPU, and copies between host and GPU are rows of bytes. Modules,
 * textures and OpenGL are not there. */
#include "../native/programs/fake_libcuda/fake_libcuda.h"

enum { NOT_SUPPORTED = 801, ON_HOST = 1, PITCH = 512 };

int cuGetErrorString(int status, const char **text) { return cuGetErrorName(status, text); }
int cuDriverGetVersion(int *version) { *version = 12040; return 0; }
int cuDeviceGet(int *device, int number) {
    *device = number;
    return number < DEVICES ? 0 : 101;
}
int cuDeviceGetName(char *name, int n, int device) {
    snprintf(name, (size_t)n, "fake %d", device);
    return 0;
}
int cuCtxCreate_v2(void **context, unsigned flags, int device) {
    (void)flags;
    CALLED;
    *context = (void *)(uintptr_t)(FIRST + device);
    stack[depth++] = (uintptr_t)*context;
    return 0;
}
int cuCtxDestroy_v2(void *context) { return context ? 0 : 1; }
int cuCtxDisablePeerAccess(void *context) { return context ? 0 : 1; }
int cuStreamDestroy(void *stream) { return cuStreamDestroy_v2(stream); }

int cuMemAllocPitch_v2(uint64_t *pointer, size_t *pitch, size_t width, size_t rows, unsigned item) {
    CALLED;
    (void)item;
    *pitch = (width + PITCH - 1) / PITCH * PITCH;
    return cuMemAlloc_v2(pointer, *pitch * rows);
}
int cuMemcpy2D_v2(const struct gd_copy_2d *copy) {
    const int status = cuMemcpy2DAsync_v2(copy, NULL);
    return status ? status : cuStreamSynchronize(NULL);
}

#define ABSENT(name)                                                                               \
    int name(void);                                                                                \
    int name(void) { return NOT_SUPPORTED; }
ABSENT(cuGraphicsMapResources)
ABSENT(cuGraphicsUnmapResources)
ABSENT(cuGraphicsUnregisterResource)
ABSENT(cuGraphicsGLRegisterImage)
ABSENT(cuGraphicsGLRegisterBuffer)
ABSENT(cuGraphicsResourceSetMapFlags_v2)
ABSENT(cuGraphicsSubResourceGetMappedArray)
ABSENT(cuGraphicsResourceGetMappedPointer_v2)
ABSENT(cuGLGetDevices_v2)
ABSENT(cuModuleLoadData)
ABSENT(cuModuleUnload)
ABSENT(cuModuleGetFunction)
ABSENT(cuTexObjectCreate)
ABSENT(cuTexObjectDestroy)
ABSENT(cuLaunchKernel)
