/* What parts.c and verbs.c of the kill matrix for device order share, in addition to
 * kill/kill.h. */
#pragma once

#include "../../../../gpuring/native/device/device.h"
#include "../../../../gpuring/native/device/record.h"
#include "../../../../gpuring/native/device/released.h"
#include "../../../../gpuring/native/device/verbs.h"
#include "../kill/kill.h"

#undef LL
#include "../fake_world.h"

enum kind { WORDS_STREAM, WORDS_HOST, EVENTS_HOST, PINNED, KINDS };
enum kind kind_of_ring(void);
extern bool by_cpu; /* this process uses the slots of a pinned ring by the CPU */

extern struct fc_world *world;
extern struct gd_driver driver;
extern struct gd_device device;
extern gd_stream streams[2];
