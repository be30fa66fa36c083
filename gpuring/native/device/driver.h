/* The CUDA driver as this library uses it: a table of functions.
 *
 * driver.c fills it from libcuda with dlopen, and tests fill it with a driver of their own.
 * Nothing else in the package calls CUDA from C or links to it, but for ../gpu.pyx, which has the
 * package's own copies. Names, arguments and results are those of cuda.h. Handles (CUcontext,
 * CUstream, CUevent) are plain pointers here; CUresult and CUdevice are ints.
 */
#pragma once

#include <pthread.h>
#include <stdbool.h>
#include <stddef.h>
#include <stdint.h>

/* The values of CUresult that decide something here. */
enum {
    CU_OK = 0,
    CU_OUT_OF_MEMORY = 2,
    CU_INVALID_VALUE = 1,
    CU_NOT_INITIALIZED = 3,
    CU_NO_DEVICE = 100,
    CU_INVALID_CONTEXT = 201,
    CU_MAP_FAILED = 205,
    CU_INVALID_HANDLE = 400,
    CU_PEER_ACCESS_ALREADY_ENABLED = 704,
    CU_NOT_SUPPORTED = 801,
    CU_NOT_READY = 600,
    CU_CAPTURE = 900,    /* ... 908: a capture forbids what was asked for */
    CU_CAPTURE_END = 909
};
enum {
    CU_CAN_USE_64_BIT_MEM_OPS = 122,  /* CUdevice_attribute */
    CU_HOST_REGISTER_SUPPORTED = 99,
    /* CU_MEMHOSTREGISTER_PORTABLE | _DEVICEMAP: mapped for every context, and into the GPU. */
    CU_HOST_PORTABLE_MAPPED = 1 | 2,
    CU_EVENT_NO_TIMING = 2,
    CU_EVENT_INTERPROCESS = 4,
    CU_WAIT_64 = 4,                   /* CUstreamBatchMemOpType */
    CU_WRITE_64 = 5,
    CU_IPC_HANDLE = 64,               /* sizeof(CUipcEventHandle) */
    CU_STREAM_NON_BLOCKING = 1,
    CU_CAPTURE_RELAXED = 2,           /* CUstreamCaptureMode */
    CU_DEVICE_ORDINAL = 9,            /* CUpointer_attribute */
    CU_UNIFIED = 4,                   /* CUmemorytype: the driver finds out where an address is */
    CU_INTEGRATED = 18,               /* CUdevice_attribute, from here on */
    CU_HAS_VIRTUAL_MEMORY = 102,
    CU_HAS_FILE_DESCRIPTORS = 103,
    CU_POOL_HANDLE_TYPES = 119,
    CU_FILE_DESCRIPTOR = 1,           /* CUmemAllocationHandleType, a descriptor of POSIX */
    CU_PINNED = 1,                    /* CUmemAllocationType: it stays where it is */
    CU_ON_DEVICE = 1,                 /* CUmemLocationType */
    CU_READ = 1,                      /* CUmemAccess_flags */
    CU_READ_WRITE = 3,
    CU_LAZY_PEER_ACCESS = 1           /* CUipcMem_flags */
};

struct gd_ipc_handle {
    uint8_t bytes[CU_IPC_HANDLE];
};

/* CUstreamBatchMemOpParams. With flags 0 a wait is for >=, and a store comes behind all earlier
 * work of the stream. */
struct gd_mem_op {
    uint32_t operation, pad;
    uint64_t address, value;
    uint32_t flags, pad2;
    uint64_t alias, pad3;
};
_Static_assert(sizeof(struct gd_mem_op) == 48, "CUstreamBatchMemOpParams: a union of six words");

/* CUDA_MEMCPY2D: rows of `width` bytes, each `pitch` bytes behind the one before. */
struct gd_rows {
    size_t x, y;
    int kind; /* CUmemorytype */
    void *host;
    uint64_t device;
    void *array;
    size_t pitch;
};
struct gd_copy_2d {
    struct gd_rows source, to;
    size_t width, rows;
};
_Static_assert(sizeof(struct gd_copy_2d) == 16 * 8, "CUDA_MEMCPY2D");

struct gd_location {
    int type, id;
};
/* CUmemAccessDesc, CUmemAllocationProp, CUmemPoolProps */
struct gd_access {
    struct gd_location location;
    int flags;
};
struct gd_allocation {
    int type, handle_types;
    struct gd_location location;
    void *win32;
    unsigned char flags[8];
};
struct gd_pool {
    int type, handle_types;
    struct gd_location location;
    void *win32;
    size_t max_nbytes;
    unsigned short usage;
    unsigned char reserved[54];
};
_Static_assert(sizeof(struct gd_access) == 12, "CUmemAccessDesc");
_Static_assert(sizeof(struct gd_allocation) == 32, "CUmemAllocationProp");
_Static_assert(sizeof(struct gd_pool) == 88, "CUmemPoolProps");

#define GD_FUNCTIONS(F)                                                                            \
    F(init, "cuInit", (unsigned flags))                                                            \
    F(get_error_name, "cuGetErrorName", (int status, const char **name))                           \
    F(device_get_attribute, "cuDeviceGetAttribute", (int *value, int attribute, int device))       \
    F(device_get_uuid, "cuDeviceGetUuid_v2", (void *uuid, int device))                             \
    F(primary_retain, "cuDevicePrimaryCtxRetain", (void **context, int device))                    \
    F(primary_release, "cuDevicePrimaryCtxRelease_v2", (int device))                               \
    F(ctx_get_device, "cuCtxGetDevice", (int *device))                                             \
    F(ctx_set_current, "cuCtxSetCurrent", (void *context))                                         \
    F(ctx_push, "cuCtxPushCurrent_v2", (void *context))                                            \
    F(ctx_pop, "cuCtxPopCurrent_v2", (void **context))                                             \
    F(ctx_synchronize, "cuCtxSynchronize", (void))                                                 \
    F(host_register, "cuMemHostRegister_v2", (void *address, size_t nbytes, unsigned flags))       \
    F(host_unregister, "cuMemHostUnregister", (void *address))                                     \
    F(host_device_pointer, "cuMemHostGetDevicePointer_v2",                                         \
      (uint64_t *pointer, void *address, unsigned flags))                                          \
    F(stream_is_capturing, "cuStreamIsCapturing", (void *stream, int *status))                     \
    F(stream_get_id, "cuStreamGetId", (void *stream, unsigned long long *id))                      \
    F(stream_query, "cuStreamQuery", (void *stream))                                               \
    F(stream_wait_event, "cuStreamWaitEvent", (void *stream, void *event, unsigned flags))         \
    F(stream_wait_value, "cuStreamWaitValue64_v2",                                                 \
      (void *stream, uint64_t address, uint64_t value, unsigned flags))                            \
    F(stream_write_value, "cuStreamWriteValue64_v2",                                               \
      (void *stream, uint64_t address, uint64_t value, unsigned flags))                            \
    F(stream_batch, "cuStreamBatchMemOp_v2",                                                       \
      (void *stream, unsigned n, struct gd_mem_op *ops, unsigned flags))                           \
    F(event_create, "cuEventCreate", (void **event, unsigned flags))                               \
    F(event_destroy, "cuEventDestroy_v2", (void *event))                                           \
    F(event_record, "cuEventRecord", (void *event, void *stream))                                  \
    F(event_query, "cuEventQuery", (void *event))                                                  \
    F(ipc_get_event_handle, "cuIpcGetEventHandle", (struct gd_ipc_handle *handle, void *event))    \
    F(ipc_open_event_handle, "cuIpcOpenEventHandle", (void **event, struct gd_ipc_handle handle))

/* Copies and fills of the package itself. This library calls none of them. */
#define GD_COPIES(F)                                                                               \
    F(copy, "cuMemcpyAsync", (uint64_t to, uint64_t source, size_t nbytes, void *stream))          \
    F(copy_rows, "cuMemcpy2DAsync_v2", (const struct gd_copy_2d *copy, void *stream))              \
    F(fill, "cuMemsetD8Async",                                                                     \
      (uint64_t pointer, unsigned char value, size_t nbytes, void *stream))                        \
    F(host_alloc, "cuMemAllocHost_v2", (void **address, size_t nbytes))                            \
    F(host_free, "cuMemFreeHost", (void *address))                                                 \
    F(stream_create, "cuStreamCreate", (void **stream, unsigned flags))                            \
    F(stream_destroy, "cuStreamDestroy_v2", (void *stream))                                        \
    F(event_synchronize, "cuEventSynchronize", (void *event))

/* GPUs, and memory on them (../memory). The device order calls none of them. */
#define GD_MEMORY(F)                                                                               \
    F(device_get_count, "cuDeviceGetCount", (int *count))                                          \
    F(device_can_reach, "cuDeviceCanAccessPeer", (int *able, int device, int other))               \
    F(let_reach, "cuCtxEnablePeerAccess", (void *context, unsigned flags))                         \
    F(capture_mode, "cuThreadExchangeStreamCaptureMode", (int *mode))                              \
    F(pointer_get_attribute, "cuPointerGetAttribute",                                              \
      (void *value, int attribute, uint64_t pointer))                                              \
    F(address_range, "cuMemGetAddressRange_v2",                                                    \
      (uint64_t *base, size_t *nbytes, uint64_t pointer))                                          \
    F(mem_alloc, "cuMemAlloc_v2", (uint64_t *pointer, size_t nbytes))                              \
    F(mem_free, "cuMemFree_v2", (uint64_t pointer))                                                \
    F(ipc_get_handle, "cuIpcGetMemHandle", (struct gd_ipc_handle *handle, uint64_t pointer))       \
    F(ipc_open, "cuIpcOpenMemHandle_v2",                                                           \
      (uint64_t *pointer, struct gd_ipc_handle handle, unsigned flags))                            \
    F(ipc_close, "cuIpcCloseMemHandle", (uint64_t pointer))                                        \
    F(granularity, "cuMemGetAllocationGranularity",                                                \
      (size_t *nbytes, const struct gd_allocation *of, int option))                                \
    F(mem_create, "cuMemCreate",                                                                   \
      (uint64_t *memory, size_t nbytes, const struct gd_allocation *of, unsigned long long flags)) \
    F(mem_release, "cuMemRelease", (uint64_t memory))                                              \
    F(mem_retain, "cuMemRetainAllocationHandle", (uint64_t *memory, void *address))                \
    F(mem_export, "cuMemExportToShareableHandle",                                                  \
      (void *fd, uint64_t memory, int type, unsigned long long flags))                             \
    F(mem_import, "cuMemImportFromShareableHandle", (uint64_t *memory, void *fd, int type))        \
    F(address_reserve, "cuMemAddressReserve",                                                      \
      (uint64_t *pointer, size_t nbytes, size_t alignment, uint64_t at, unsigned long long flags)) \
    F(address_free, "cuMemAddressFree", (uint64_t pointer, size_t nbytes))                         \
    F(mem_map, "cuMemMap",                                                                         \
      (uint64_t pointer, size_t nbytes, size_t offset, uint64_t memory, unsigned long long flags)) \
    F(mem_unmap, "cuMemUnmap", (uint64_t pointer, size_t nbytes))                                  \
    F(mem_set_access, "cuMemSetAccess",                                                            \
      (uint64_t pointer, size_t nbytes, const struct gd_access *access, size_t n))                 \
    F(pool_create, "cuMemPoolCreate", (void **pool, const struct gd_pool *of))                     \
    F(pool_destroy, "cuMemPoolDestroy", (void *pool))                                              \
    F(pool_alloc, "cuMemAllocFromPoolAsync",                                                       \
      (uint64_t *pointer, size_t nbytes, void *pool, void *stream))                                \
    F(pool_free, "cuMemFreeAsync", (uint64_t pointer, void *stream))                               \
    F(pool_export, "cuMemPoolExportToShareableHandle",                                             \
      (void *fd, void *pool, int type, unsigned long long flags))                                  \
    F(pool_export_pointer, "cuMemPoolExportPointer", (void *exported, uint64_t pointer))           \
    F(pool_import, "cuMemPoolImportFromShareableHandle",                                           \
      (void **pool, void *fd, int type, unsigned long long flags))                                 \
    F(pool_import_pointer, "cuMemPoolImportPointer",                                               \
      (uint64_t *pointer, void *pool, void *exported))                                             \
    F(pool_set_access, "cuMemPoolSetAccess",                                                       \
      (void *pool, const struct gd_access *access, size_t n))                                      \
    F(stream_synchronize, "cuStreamSynchronize", (void *stream))

/* An interprocess event that this process made. Later peers use it again, and it is never
 * destroyed: to query an imported event whose original was destroyed is undefined (CUDA Runtime
 * API, cudaIpcOpenEventHandle), and another process may do so at any time. */
struct gd_own_event {
    struct gd_own_event *next;
    void *event;
    struct gd_ipc_handle handle;
    int device;
    bool idle; /* its peer has left */
};

struct gd_driver {
#define MEMBER(name, symbol, arguments) int(*name) arguments;
    GD_FUNCTIONS(MEMBER)
    GD_COPIES(MEMBER)
    GD_MEMORY(MEMBER)
#undef MEMBER
    /* Guards the fields below. No driver call that could wait for a stream is made under it. */
    pthread_mutex_t mutex;
    struct gd_own_event *made;
    uint32_t made_count;
};

/* Fills the table, asking `find` for each symbol. False: *missing names a symbol that was not
 * found. */
bool gd_driver_fill(struct gd_driver *driver, void *(*find)(void *library, const char *symbol),
                    void *library, const char **missing);

/* The driver of this machine, loaded at the first call and kept for good. NULL: *why says what is
 * missing. If *found, the library is there, but too old to have the symbol *why. Otherwise *why is
 * what dlopen said. */
struct gd_driver *gd_driver_load(const char **why, bool *found);

const char *gd_status_name(const struct gd_driver *driver, int status);

static inline bool gd_is_capture(int status) {
    return status >= CU_CAPTURE && status < CU_CAPTURE_END;
}
