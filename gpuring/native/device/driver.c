/* Fills the table of driver.h from libcuda.so.1. */
#define _GNU_SOURCE
#include "driver.h"

#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

bool gd_driver_fill(struct gd_driver *driver, void *(*find)(void *library, const char *symbol),
                    void *library, const char **missing) {
    memset(driver, 0, sizeof *driver);
    pthread_mutex_init(&driver->mutex, NULL);
#define FILL(name, symbol, arguments)                                                              \
    do {                                                                                           \
        void *found = find(library, symbol);                                                       \
        if (!found) {                                                                              \
            *missing = symbol;                                                                     \
            return false;                                                                          \
        }                                                                                          \
        /* POSIX allows that of the address of a function. */                                      \
        memcpy(&driver->name, &found, sizeof found);                                               \
    } while (0);
    GD_FUNCTIONS(FILL)
    GD_COPIES(FILL)
    GD_MEMORY(FILL)
#undef FILL
    return true;
}

static struct gd_driver loaded;
static const char *failure;
static bool has_library;

static void *in_library(void *library, const char *symbol) { return dlsym(library, symbol); }

static void load(void) {
    static char text[256];
    void *library = dlopen("libcuda.so.1", RTLD_NOW | RTLD_LOCAL);
    has_library = library != NULL;
    if (!library) {
        const char *why = dlerror();
        snprintf(text, sizeof text, "%s", why ? why : "libcuda.so.1 cannot be loaded");
        failure = text;
    } else if (gd_driver_fill(&loaded, in_library, library, &failure)) failure = NULL;
}

struct gd_driver *gd_driver_load(const char **why, bool *found) {
    static pthread_once_t once = PTHREAD_ONCE_INIT;
    pthread_once(&once, load);
    *why = failure;
    *found = has_library;
    return failure ? NULL : &loaded;
}

const char *gd_status_name(const struct gd_driver *driver, int status) {
    const char *name = NULL;
    return driver->get_error_name(status, &name) == CU_OK && name ? name : "an unknown CUresult";
}
