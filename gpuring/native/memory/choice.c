#include "choice.h"

#include <ctype.h>
#include <stdio.h>
#include <string.h>
#include <sys/stat.h>

/* *value is 0 if the GPU cannot be asked, and then `why` says so. */
static bool able(struct gd_driver *driver, int attribute, int device, int *value,
                 char why[GM_WORDS]) {
    *value = 0;
    int status = driver->init(0);
    if (status == CU_OK) status = driver->device_get_attribute(value, attribute, device);
    if (status != CU_OK)
        snprintf(why, GM_WORDS, "GPU %d cannot be asked for attribute %d: %s", device, attribute,
                 gd_status_name(driver, status));
    return status == CU_OK;
}

static bool is_wsl(const char *release) {
    char low[128] = "";
    for (size_t k = 0; release[k] && k + 1 < sizeof low; k++)
        low[k] = (char)tolower((unsigned char)release[k]), low[k + 1] = 0;
    return strstr(low, "microsoft") != NULL;
}

static void lacks_ipc(struct gd_driver *driver, int device, const char *release,
                      char why[GM_WORDS]) {
    int integrated;
    if (is_wsl(release)) snprintf(why, GM_WORDS, "WSL2 has no legacy CUDA IPC between processes");
    else if (able(driver, CU_INTEGRATED, device, &integrated, why) && integrated)
        snprintf(why, GM_WORDS,
                 "GPU %d is integrated (Tegra, Jetson), and has no legacy CUDA IPC", device);
}

static void lacks_vmm(struct gd_driver *driver, int device, char why[GM_WORDS]) {
    int memory, descriptors;
    if (able(driver, CU_HAS_VIRTUAL_MEMORY, device, &memory, why) &&
        able(driver, CU_HAS_FILE_DESCRIPTORS, device, &descriptors, why) &&
        !(memory && descriptors))
        snprintf(why, GM_WORDS, "GPU %d cannot share virtual memory by file descriptors", device);
}

static void lacks_pool(struct gd_driver *driver, int device, char why[GM_WORDS]) {
    int types;
    if (able(driver, CU_POOL_HANDLE_TYPES, device, &types, why) && !(types & CU_FILE_DESCRIPTOR))
        snprintf(why, GM_WORDS, "GPU %d cannot share memory pools by file descriptors", device);
}

const char *gm_lacks(struct gd_driver *driver, enum gr_memory kind, int device,
                     const char *release, char why[GM_WORDS]) {
    *why = 0;
    if (kind == GR_MEMORY_IPC) lacks_ipc(driver, device, release, why);
    if (kind == GR_MEMORY_VMM) lacks_vmm(driver, device, why);
    if (kind == GR_MEMORY_POOL) lacks_pool(driver, device, why);
    return why;
}

const char *gm_lacks_timeline(struct gd_driver *driver, int device, char why[GM_WORDS]) {
    int words, registers;
    *why = 0;
    if (!able(driver, CU_CAN_USE_64_BIT_MEM_OPS, device, &words, why)) return why;
    if (!words) snprintf(why, GM_WORDS, "GPU %d has no 64-bit stream waits", device);
    else if (able(driver, CU_HOST_REGISTER_SUPPORTED, device, &registers, why) && !registers)
        snprintf(why, GM_WORDS, "GPU %d cannot map host memory that CUDA did not allocate", device);
    return why;
}

enum gr_memory gm_auto(bool contained, const char *no_ipc, const char *no_vmm,
                       char why[2 * GM_WORDS]) {
    static const char here[] = "this process is in a pid namespace of its own, as containers have";
    const size_t room = 2 * GM_WORDS;
    if (*no_ipc && *no_vmm) snprintf(why, room, "%s, and %s", no_ipc, no_vmm);
    else if (*no_ipc) snprintf(why, room, "%s", no_ipc);
    else if (!contained)
        snprintf(why, room, "this process is in the first pid namespace of the system");
    else if (*no_vmm) snprintf(why, room, "%s, but %s", here, no_vmm);
    else
        snprintf(why, room, "%s, and processes of other namespaces cannot open legacy CUDA IPC",
                 here);
    if (*no_ipc) return *no_vmm ? GR_MEMORY_PINNED : GR_MEMORY_VMM;
    return contained && !*no_vmm ? GR_MEMORY_VMM : GR_MEMORY_IPC;
}

bool gm_is_contained(void) {
    const ino_t first = 0xEFFFFFFC; /* the inode of the pid namespace in which a system starts */
    struct stat found;
    return stat("/proc/self/ns/pid", &found) == 0 && found.st_ino != first;
}

gpuring_status gm_order(gpuring_sync sync, gpuring_gate gate, const char *no_timeline,
                        enum gr_sync *has_sync, enum gr_gate *has_gate, gpuring_error *error) {
    const bool timeline = !*no_timeline;
    if (sync == GPURING_SYNC_TIMELINE && !timeline)
        return gm_fail(error, CU_NOT_SUPPORTED,
                       "`sync` timeline: %s. Use `sync` event or auto", no_timeline);
    *has_sync = sync == GPURING_SYNC_EVENT || !timeline ? GR_SYNC_EVENT : GR_SYNC_TIMELINE;
    *has_gate = gate == GPURING_GATE_HOST ? GR_GATE_HOST : GR_GATE_STREAM;
    /* Without a timeline the host waits, because a stream that waits for the event of a killed
     * process would wait for ever. */
    if (sync == GPURING_SYNC_AUTO && !timeline && gate == GPURING_GATE_AUTO)
        *has_gate = GR_GATE_HOST;
    return GPURING_OK;
}
