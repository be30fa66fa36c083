/* What a GPU lacks, and what a new ring there has: its memory, its synchroniser and its gate. */
#pragma once

#include "../core/layout.h"
#include "gpu.h"

/* Why rings on a GPU cannot have a kind of memory, or a timeline, in one line. Returns why, which is
 * empty if nothing is known against it. release: that of the kernel. */
const char *gm_lacks(struct gd_driver *driver, enum gr_memory kind, int device,
                     const char *release, char why[GM_WORDS]);
const char *gm_lacks_timeline(struct gd_driver *driver, int device, char why[GM_WORDS]);

/* Which memory "auto" takes, and why. contained: the creator is in a container. no_ipc, no_vmm: why
 * the GPU cannot have that kind; empty if it can. */
enum gr_memory gm_auto(bool contained, const char *no_ipc, const char *no_vmm,
                       char why[2 * GM_WORDS]);
/* Whether this process is in another pid namespace than the first one. false if unknown. */
bool gm_is_contained(void);

/* Which synchroniser and gate a ring on a GPU has, if these were asked for. GPURING_DEVICE: the GPU
 * has no timeline, and no_timeline says why. */
gpuring_status gm_order(gpuring_sync sync, gpuring_gate gate, const char *no_timeline,
                        enum gr_sync *has_sync, enum gr_gate *has_gate, gpuring_error *error);
