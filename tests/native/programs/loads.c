/* Loads the named library, joins a ring with it, and gives it up. This is done twice, because a library
 * that was unloaded under its threads crashes the second time, if not before. */
#define _POSIX_C_SOURCE 200809L
#include <dlfcn.h>
#include <stdio.h>
#include <string.h>

#include "../../../gpuring/include/gpuring.h"

/* A function of the library. ISO C has no cast from an object to a function. */
#define FIND(name)                                                                                 \
    do {                                                                                           \
        void *found = dlsym(library, #name);                                                       \
        memcpy(&name##_, &found, sizeof found);                                                    \
    } while (0)

int main(int argc, char **argv) {
    gpuring_error error = {.status = GPURING_OK};
    for (int k = 0; k < 2 && argc == 3; k++) {
        void *library = dlopen(argv[1], RTLD_NOW | RTLD_LOCAL);
        if (!library) return puts(dlerror()), 1;
        gpuring_status (*gpuring_attach_)(const char *, const gpuring_attach_options *,
                                          gpuring_ring **, gpuring_error *);
        gpuring_status (*gpuring_join_producer_)(gpuring_ring *, const gpuring_producer_options *,
                                                 gpuring_producer **, gpuring_error *);
        gpuring_status (*gpuring_close_producer_)(gpuring_producer *, gpuring_error *);
        gpuring_status (*gpuring_detach_)(gpuring_ring *, gpuring_error *);
        gpuring_ring *ring;
        gpuring_producer *producer;
        FIND(gpuring_attach);
        FIND(gpuring_join_producer);
        FIND(gpuring_close_producer);
        FIND(gpuring_detach);
        if (gpuring_attach_(argv[2], NULL, &ring, &error) ||
            gpuring_join_producer_(ring, NULL, &producer, &error) ||
            gpuring_close_producer_(producer, &error) || gpuring_detach_(ring, &error))
            return puts(error.text), 1;
        dlclose(library);
    }
    return 0;
}
