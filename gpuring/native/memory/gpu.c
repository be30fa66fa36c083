#include "gpu.h"

#include <stdarg.h>
#include <stdio.h>
#include <stdlib.h>
#include <string.h>

#include "../host/text.h"

const char *gm_told(char words[GM_WORDS], const struct gd_driver *driver,
                    const struct gm_refusal *refusal) {
    snprintf(words, GM_WORDS, "%s: %s (%d)", refusal->call, gd_status_name(driver, refusal->status),
             refusal->status);
    return words;
}

gpuring_status gm_fail(gpuring_error *error, int device_status, const char *format, ...) {
    gpuring_error said = {.status = GPURING_DEVICE, .device_status = device_status};
    va_list arguments;
    va_start(arguments, format);
    struct gh_text text = gh_begin_text(said.text, sizeof said.text);
    gh_add_list(&text, format, arguments);
    va_end(arguments);
    *error = said;
    return GPURING_DEVICE;
}

gpuring_status gm_fail_no_driver(const char *why, bool found, gpuring_error *error) {
    if (found)
        return gm_fail(error, 0,
                       "this NVIDIA driver has no %s: CUDA 12 or later is needed; update the driver",
                       why);
    return gm_fail(error, 0, "there is no NVIDIA driver (%s); use " GM_HOST, why);
}

gpuring_status gm_load(struct gd_driver **driver, gpuring_error *error) {
    const char *why;
    bool found;
    *driver = gd_driver_load(&why, &found);
    return *driver ? GPURING_OK : gm_fail_no_driver(why, found, error);
}

/* ---- which one ------------------------------------------------------------------------------- */

static const char *visible(void) {
    const char *set = getenv("CUDA_VISIBLE_DEVICES");
    return set ? set : "unset";
}

static gpuring_status no_gpu(const struct gd_driver *driver, const struct gm_refusal *refusal,
                             gpuring_error *error) {
    char words[GM_WORDS], shown[GM_WORDS];
    const char *why = "CUDA does not start";
    snprintf(shown, sizeof shown, "the NVIDIA driver shows none (CUDA_VISIBLE_DEVICES=%s)",
             visible());
    if (refusal->status == CU_NO_DEVICE) why = shown;
    if (refusal->status == CU_NOT_INITIALIZED)
        why = "CUDA does not start; after fork() it cannot: use the 'spawn' method";
    return gm_fail(error, refusal->status,
                   "no usable GPU: %s (%s). Use " GM_HOST ", or run on a machine with an NVIDIA GPU",
                   why, gm_told(words, driver, refusal));
}

static bool count(struct gd_driver *driver, int *n, struct gm_refusal *refusal) {
    *refusal = (struct gm_refusal){"cuInit", driver->init(0)};
    if (refusal->status == CU_OK)
        *refusal = (struct gm_refusal){"cuDeviceGetCount", driver->device_get_count(n)};
    return refusal->status == CU_OK;
}

gpuring_status gm_check_gpu(struct gd_driver *driver, int device, gpuring_error *error) {
    struct gm_refusal refusal;
    int n = 0;
    if (!count(driver, &n, &refusal)) return no_gpu(driver, &refusal, error);
    if (device >= 0 && device < n) return GPURING_OK;
    return gm_fail(error, 0,
                   "there is no GPU %d: this process sees %d, from 0 on (CUDA_VISIBLE_DEVICES=%s)",
                   device, n, visible());
}

int gm_current_gpu(struct gd_driver *driver) {
    int device = 0;
    return driver->init(0) == CU_OK && driver->ctx_get_device(&device) == CU_OK ? device : 0;
}

gpuring_status gm_uuid(struct gd_driver *driver, int device, uint8_t uuid[GM_UUID],
                       gpuring_error *error) {
    int status = driver->init(0);
    if (status == CU_OK) status = driver->device_get_uuid(uuid, device);
    if (status == CU_OK) return GPURING_OK;
    return gm_fail(error, status, "the driver does not give the UUID of GPU %d: %s", device,
                   gd_status_name(driver, status));
}

int gm_gpu_of(struct gd_driver *driver, const uint8_t uuid[GM_UUID]) {
    struct gm_refusal refusal;
    uint8_t found[GM_UUID];
    int n = 0;
    if (!count(driver, &n, &refusal)) return -1;
    for (int k = 0; k < n; k++)
        if (driver->device_get_uuid(found, k) == CU_OK && memcmp(found, uuid, GM_UUID) == 0)
            return k;
    return -1;
}

/* ---- whose memory ---------------------------------------------------------------------------- */

static void name_of(const uint8_t uuid[GM_UUID], char name[48]) {
    char *to = name + sprintf(name, "GPU-");
    for (int k = 0; k < GM_UUID; k++)
        to += sprintf(to, "%s%02x", k == 4 || k == 6 || k == 8 || k == 10 ? "-" : "", uuid[k]);
}

static bool reaches(struct gd_driver *driver, int device, int other) {
    int able = 0;
    return driver->device_can_reach(&able, device, other) == CU_OK && able;
}

gpuring_status gm_owner_of(struct gd_driver *driver, int device, const uint8_t wanted[GM_UUID],
                           const char *ring, int *owner, gpuring_error *error) {
    uint8_t mine[GM_UUID];
    char theirs[48], ours[48], how[64], fix[GM_WORDS];
    const gpuring_status status = gm_uuid(driver, device, mine, error);
    if (status != GPURING_OK) return status;
    *owner = device;
    if (memcmp(mine, wanted, GM_UUID) == 0) return GPURING_OK;
    *owner = gm_gpu_of(driver, wanted);
    if (*owner >= 0 && reaches(driver, device, *owner)) return GPURING_OK;
    if (*owner < 0) {
        snprintf(how, sizeof how, "cannot be seen");
        snprintf(fix, sizeof fix, "Make that GPU visible to this process");
    } else {
        snprintf(how, sizeof how, "is GPU %d and cannot be reached", *owner);
        snprintf(fix, sizeof fix, "Attach with `device` %d", *owner);
    }
    name_of(wanted, theirs);
    name_of(mine, ours);
    return gm_fail(error, 0,
                   "ring '%s' lives on %s, which %s from GPU %d, %s (CUDA_VISIBLE_DEVICES=%s). %s, "
                   "and copy the frames to other GPUs",
                   ring, theirs, how, device, ours, visible(), fix);
}

/* ---- its context ----------------------------------------------------------------------------- */

bool gm_enter(struct gd_driver *driver, int device, struct gm_refusal *refusal) {
    void *context = NULL;
    *refusal = (struct gm_refusal){"cuDevicePrimaryCtxRetain", driver->init(0)};
    if (refusal->status == CU_OK) refusal->status = driver->primary_retain(&context, device);
    if (refusal->status == CU_OK)
        *refusal = (struct gm_refusal){"cuCtxPushCurrent_v2", driver->ctx_push(context)};
    return refusal->status == CU_OK;
}

void gm_leave(struct gd_driver *driver) {
    void *popped;
    driver->ctx_pop(&popped);
}
