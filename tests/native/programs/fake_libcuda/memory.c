/* Memory, and how other processes open it. */
#define _GNU_SOURCE
#include "fake_libcuda.h"

#include <fcntl.h>
#include <sys/mman.h>
#include <sys/stat.h>

enum { PORTABLE_MAPPED = 3 };

/* ---- what CUDA knows ------------------------------------------------------------------------- */

/* Memory that CUDA knows. */
enum { REGIONS = 256 };
static struct region {
    void *base, *mirror;
    size_t nbytes;
    int fd;
    bool is_virtual;
} regions[REGIONS];

static struct region *region_at(const void *base) {
    for (int k = 0; k < REGIONS; k++)
        if (regions[k].base == base) return &regions[k];
    return NULL;
}
static uint64_t noted(void *base, size_t nbytes, int fd) {
    pthread_mutex_lock(&mutex);
    *region_at(NULL) = (struct region){base, NULL, nbytes, fd, false};
    pthread_mutex_unlock(&mutex);
    return (uint64_t)base;
}
/* What an address is in. */
static struct region *region_of(uint64_t address) {
    for (int k = 0; k < REGIONS; k++)
        if (address - (uint64_t)regions[k].base < regions[k].nbytes) return &regions[k];
    return NULL;
}
bool is_known(uint64_t address) {
    for (int k = 0; k < REGIONS; k++) {
        const struct region *region = &regions[k];
        if (address - (uint64_t)region->base < region->nbytes ||
            (region->mirror && address - (uint64_t)region->mirror < region->nbytes))
            return true;
    }
    return false;
}

/* ---- what other processes open --------------------------------------------------------------- */

int new_file(size_t nbytes) {
    const int fd = memfd_create("fake-cuda", MFD_CLOEXEC);
    if (fd < 0 || ftruncate(fd, (off_t)nbytes)) abort();
    return fd;
}
void *map(int fd, size_t nbytes) {
    void *base = mmap(NULL, nbytes, PROT_READ | PROT_WRITE, MAP_SHARED, fd, 0);
    return base == MAP_FAILED ? NULL : base;
}
struct gd_ipc_handle handle_of(int fd, size_t nbytes) {
    const struct handle made = {getpid(), fd, nbytes};
    struct gd_ipc_handle handle = {{0}};
    memcpy(&handle, &made, sizeof made);
    return handle;
}
/* NULL: the process that made the handle is gone, or is this one. CUDA does not open a handle in
 * the process that made it. */
void *open_handle(const struct gd_ipc_handle *handle, struct handle *found) {
    char path[64];
    memcpy(found, handle, sizeof *found);
    if (found->pid == getpid()) return NULL;
    snprintf(path, sizeof path, "/proc/%d/fd/%d", found->pid, found->fd);
    const int fd = open(path, O_RDWR | O_CLOEXEC);
    if (fd < 0) return NULL;
    void *base = map(fd, found->nbytes);
    close(fd);
    return base;
}

/* ---- memory ---------------------------------------------------------------------------------- */

/* Frees it, behind all work so far. */
static int given_back(uint64_t pointer) {
    struct region *region = pointer ? region_at((void *)pointer) : NULL;
    if (!region) return CU_INVALID_VALUE;
    finish(NULL);
    munmap(region->base, region->nbytes);
    if (region->fd >= 0) close(region->fd);
    *region = (struct region){0};
    return 0;
}

int cuMemAlloc_v2(uint64_t *pointer, size_t nbytes) {
    CALLED;
    const int fd = new_file(nbytes);
    *pointer = noted(map(fd, nbytes), nbytes, fd);
    return 0;
}
int cuMemGetAddressRange_v2(uint64_t *base, size_t *nbytes, uint64_t pointer) {
    CALLED;
    const struct region *region = region_of(pointer);
    if (!region) return CU_INVALID_VALUE;
    *base = (uint64_t)region->base;
    *nbytes = region->nbytes;
    return 0;
}
int cuMemFree_v2(uint64_t pointer) { CALLED; return given_back(pointer); }
int cuIpcGetMemHandle(struct gd_ipc_handle *handle, uint64_t pointer) {
    CALLED;
    const struct region *region = region_at((void *)pointer);
    if (!region || region->fd < 0 || region->is_virtual) return CU_INVALID_VALUE;
    *handle = handle_of(region->fd, region->nbytes);
    return 0;
}
int cuIpcOpenMemHandle_v2(uint64_t *pointer, struct gd_ipc_handle handle, unsigned flags) {
    CALLED;
    struct handle found;
    void *base = open_handle(&handle, &found);
    if (!base) return CU_INVALID_CONTEXT;
    *pointer = noted(base, found.nbytes, -1);
    return flags == CU_LAZY_PEER_ACCESS ? 0 : 1;
}
int cuIpcCloseMemHandle(uint64_t pointer) { CALLED; return given_back(pointer); }

int cuMemGetAllocationGranularity(size_t *nbytes, const struct gd_allocation *of, int option) {
    CALLED;
    *nbytes = 2 << 20;
    return of->type == CU_PINNED ? option : 1;
}
struct memory {
    int fd;
};
static uint64_t memory_of(int fd) {
    struct memory *memory = malloc(sizeof *memory);
    memory->fd = fd;
    return (uint64_t)memory;
}
int cuMemCreate(uint64_t *memory, size_t nbytes, const struct gd_allocation *of, ull flags) {
    CALLED;
    *memory = memory_of(new_file(nbytes));
    return of->handle_types == CU_FILE_DESCRIPTOR ? (int)flags : 1;
}
int cuMemRelease(uint64_t memory) {
    CALLED;
    close(((struct memory *)memory)->fd);
    free((struct memory *)memory);
    return 0;
}
int cuMemRetainAllocationHandle(uint64_t *memory, void *address) {
    CALLED;
    const struct region *region = region_of((uint64_t)address);
    if (!region || !region->is_virtual) return CU_INVALID_VALUE;
    *memory = memory_of(dup(region->fd));
    return 0;
}
int cuMemExportToShareableHandle(void *fd, uint64_t memory, int type, ull flags) {
    CALLED;
    *(int *)fd = dup(((struct memory *)memory)->fd);
    return type == CU_FILE_DESCRIPTOR ? (int)flags : 1;
}
int cuMemImportFromShareableHandle(uint64_t *memory, void *fd, int type) {
    CALLED;
    const int own = dup((int)(intptr_t)fd);
    if (own < 0 || type != CU_FILE_DESCRIPTOR) return CU_INVALID_VALUE;
    *memory = memory_of(own);
    return 0;
}
static void *reserve(void *at, size_t nbytes) {
    return mmap(at, nbytes, PROT_NONE, MAP_PRIVATE | MAP_ANONYMOUS | (at ? MAP_FIXED : 0), -1, 0);
}
int cuMemAddressReserve(uint64_t *pointer, size_t nbytes, size_t alignment, uint64_t at, ull flags) {
    CALLED;
    *pointer = noted(reserve(NULL, nbytes), nbytes, -1);
    return alignment || at || flags ? 1 : 0;
}
int cuMemAddressFree(uint64_t pointer, size_t nbytes) {
    CALLED;
    *region_at((void *)pointer) = (struct region){0};
    return munmap((void *)pointer, nbytes);
}
int cuMemMap(uint64_t pointer, size_t nbytes, size_t offset, uint64_t memory, ull flags) {
    CALLED;
    const int fd = ((struct memory *)memory)->fd;
    struct stat file;
    if (fstat(fd, &file) || (size_t)file.st_size < nbytes) return CU_INVALID_VALUE;
    mmap((void *)pointer, nbytes, PROT_NONE, MAP_SHARED | MAP_FIXED, fd, (off_t)offset);
    struct region *region = region_at((void *)pointer);
    region->fd = dup(fd);
    region->is_virtual = true;
    return (int)flags;
}
int cuMemUnmap(uint64_t pointer, size_t nbytes) {
    CALLED;
    struct region *region = region_at((void *)pointer);
    reserve((void *)pointer, nbytes);
    close(region->fd);
    region->fd = -1;
    region->is_virtual = false;
    return 0;
}
int cuMemSetAccess(uint64_t pointer, size_t nbytes, const struct gd_access *access, size_t n) {
    CALLED;
    const int writes = access->flags == CU_READ_WRITE ? PROT_WRITE : 0;
    return n == 1 ? mprotect((void *)pointer, nbytes, PROT_READ | writes) : 1;
}

struct pool {
    int fd;
    size_t nbytes;
};
int cuMemPoolCreate(void **pool, const struct gd_pool *of) {
    CALLED;
    struct pool *made = malloc(sizeof *made);
    *made = (struct pool){-1, 0};
    *pool = made;
    return of->handle_types == CU_FILE_DESCRIPTOR ? 0 : 1;
}
int cuMemPoolDestroy(void *pool) {
    CALLED;
    close(((struct pool *)pool)->fd);
    free(pool);
    return 0;
}
int cuMemAllocFromPoolAsync(uint64_t *pointer, size_t nbytes, void *pool, void *stream) {
    CALLED_ON(stream);
    struct pool *of = pool;
    *of = (struct pool){new_file(nbytes), nbytes};
    *pointer = noted(map(of->fd, nbytes), nbytes, -1);
    return 0;
}
int cuMemFreeAsync(uint64_t pointer, void *stream) { CALLED_ON(stream); return given_back(pointer); }
int cuMemPoolExportToShareableHandle(void *fd, void *pool, int type, ull flags) {
    CALLED;
    *(int *)fd = dup(((struct pool *)pool)->fd);
    return type == CU_FILE_DESCRIPTOR ? (int)flags : 1;
}
int cuMemPoolExportPointer(void *exported, uint64_t pointer) {
    CALLED;
    memset(exported, 0, 64);
    memcpy(exported, &region_at((void *)pointer)->nbytes, sizeof(size_t));
    return 0;
}
int cuMemPoolImportFromShareableHandle(void **pool, void *fd, int type, ull flags) {
    CALLED;
    const int own = dup((int)(intptr_t)fd);
    if (own < 0 || type != CU_FILE_DESCRIPTOR) return CU_INVALID_VALUE;
    struct pool *made = malloc(sizeof *made);
    *made = (struct pool){own, 0};
    *pool = made;
    return (int)flags;
}
int cuMemPoolImportPointer(uint64_t *pointer, void *pool, void *exported) {
    CALLED;
    size_t nbytes;
    memcpy(&nbytes, exported, sizeof nbytes);
    void *base = map(((struct pool *)pool)->fd, nbytes);
    if (!base) return CU_INVALID_VALUE;
    *pointer = noted(base, nbytes, -1);
    return 0;
}
int cuMemPoolSetAccess(void *pool, const struct gd_access *access, size_t n) {
    CALLED;
    return pool && access->flags == CU_READ_WRITE && n == 1 ? 0 : 1;
}

/* The GPU has host memory at another address. */
int cuMemHostRegister_v2(void *address, size_t nbytes, unsigned flags) {
    CALLED;
    if ((uintptr_t)address % 4096 || nbytes % 4096 || flags != PORTABLE_MAPPED) return 1;
    if (region_at(address)) return 712; /* CUDA_ERROR_HOST_MEMORY_ALREADY_REGISTERED */
    noted(address, nbytes, -1);
    region_at(address)->mirror = mremap(address, 0, nbytes, MREMAP_MAYMOVE);
    return region_at(address)->mirror == MAP_FAILED ? 1 : 0;
}
int cuMemHostUnregister(void *address) {
    CALLED;
    struct region *region = region_at(address);
    if (!region) return 713; /* CUDA_ERROR_HOST_MEMORY_NOT_REGISTERED */
    munmap(region->mirror, region->nbytes);
    *region = (struct region){0};
    return 0;
}
int cuMemHostGetDevicePointer_v2(uint64_t *pointer, void *address, unsigned flags) {
    CALLED;
    const struct region *region = region_at(address);
    if (!region) return 713;
    *pointer = (uint64_t)region->mirror;
    return (int)flags;
}
int cuMemAllocHost_v2(void **address, size_t nbytes) {
    CALLED;
    *address = calloc(1, nbytes);
    noted(*address, nbytes, -1);
    return 0;
}
int cuMemFreeHost(void *address) {
    CALLED;
    *region_at(address) = (struct region){0};
    free(address);
    return 0;
}
int cuPointerGetAttribute(void *value, int attribute, uint64_t pointer) {
    CALLED;
    *(int *)value = 0;
    return attribute == CU_DEVICE_ORDINAL && is_known(pointer) ? 0 : CU_INVALID_VALUE;
}
