/* The puppet's commands that create, attach, detach and describe its ring. */
#include "puppet.h"

static void do_attach(void) {
    gpuring_attach_options options = GPURING_ATTACH_OPTIONS;
    const char *name = word();
    options.timeout_ns = number();
    options.device = place.device;
    answer(gpuring_attach(name, &options, &ring, &error));
}

/* What the next do_create does with a ring that is there, and with which subscriptions. */
static gpuring_replace replaces;
static const char *born[MOST];
static char born_text[256];
static uint32_t born_count;

static void do_born(void) {
    born_count = 0;
    const char *rest = strtok(NULL, "\n");
    snprintf(born_text, sizeof born_text, "%s", rest ? rest : "");
    for (char *at = strtok(born_text, " "); at && born_count < MOST; at = strtok(NULL, " "))
        born[born_count++] = at;
    printf("ok");
}

/* NAME SLOTS MODE, and of each field of a slot its name, dtype and extents, all with blanks between
 * them and "," behind. The fields of the metadata come behind a ";". */
static void do_create(void) {
    gpuring_create_options options = GPURING_CREATE_OPTIONS;
    static gpuring_field fields[2][MOST];
    uint32_t counts[2] = {0, 0}, kind = 0;
    const char *name = word();
    options.slots = (uint32_t)number();
    options.mode = (uint32_t)number();
    options.replace = replaces;
    options.subscriptions = born_count ? born : NULL;
    options.subscription_count = born_count;
    for (const char *next = word(); *next; next = word()) {
        if (strcmp(next, ";") == 0) {
            kind = 1;
            continue;
        }
        gpuring_field *field = &fields[kind][counts[kind]++ % MOST];
        *field = (gpuring_field)GPURING_FIELD;
        field->name = next;
        field->dtype = word();
        for (next = word(); strcmp(next, ",") != 0 && *next; next = word())
            field->shape[field->dimensions++ % GPURING_MAX_DIMENSIONS] = strtoull(next, NULL, 10);
    }
    options.fields = counts[0] ? fields[0] : NULL;
    options.field_count = counts[0];
    options.meta = counts[1] ? fields[1] : NULL;
    options.meta_count = counts[1];
    options.memory = place.memory;
    options.device = place.device;
    options.sync = place.sync;
    options.gate = place.gate;
    options.given = place.given;
    options.given_nbytes = place.given_nbytes;
    answer(gpuring_create(name, &options, &ring, &error));
}

/* NAME START FLAGS PATIENCE */
static void do_subscribe(void) {
    gpuring_subscribe_options options = GPURING_SUBSCRIBE_OPTIONS;
    const char *name = word();
    options.start = number();
    const char *flags = word();
    options.lossy = strchr(flags, 'l') != NULL;
    options.drop = strchr(flags, 'd') != NULL;
    options.patience_ns = number();
    answer(gpuring_subscribe(ring, name, &options, &error));
}

static void do_unsubscribe(void) {
    bool found = false;
    answer(gpuring_unsubscribe(ring, word(), &found, &error));
    printf(" found=%d", found);
}

static void tell_info(const gpuring_ring *of) {
    gpuring_info info = GPURING_INFO;
    answer(gpuring_get_info(of, &info));
    printf(" memory=%d sync=%d gate=%d device=%d mapped=%d", info.memory, info.sync, info.gate,
           info.device, info.mapped);
    printf(" slots=%u slot_nbytes=%" PRIu64 " meta_nbytes=%" PRIu64
           " closed=%d producers=%u consumers=%u next=%" PRIu64 " dropped=%" PRIu64 " pid=%" PRIu64,
           info.slots, info.slot_nbytes, info.meta_nbytes, info.closed, info.live_producers,
           info.live_consumers, info.next_seq, info.dropped, info.creator_pid);
}

static void do_info(void) { tell_info(ring); }

/* ENDPOINT: describes its ring. Without an endpoint: describes the ring of the last call once
 * more. */
static void do_told(void) {
    static const gpuring_ring *told;
    const char *number = word();
    if (*number) told = gpuring_consumer_ring(ends[atoi(number) % MOST].consumer);
    tell_info(told);
}

static void tell_field(const gpuring_field *field) {
    printf(" %s|%s|%" PRIu64 "|%" PRIu64 "|", field->name, field->dtype, field->offset,
           field->nbytes);
    for (uint32_t k = 0; k < field->dimensions; k++)
        printf("%s%" PRIu64, k ? "," : "", field->shape[k]);
}

static void do_fields(void) {
    gpuring_field field = GPURING_FIELD;
    printf("fields");
    for (uint32_t k = 0; gpuring_field_at(ring, k, &field) == GPURING_OK; k++) tell_field(&field);
    printf(" meta");
    for (uint32_t k = 0; gpuring_meta_at(ring, k, &field) == GPURING_OK; k++) tell_field(&field);
}

bool obey_on_ring(const char *verb) {
    if (strcmp(verb, "attach") == 0) do_attach();
    else if (strcmp(verb, "detach") == 0) answer(gpuring_detach(ring, &error));
    else if (strcmp(verb, "create") == 0) do_create();
    else if (strcmp(verb, "replaces") == 0) printf("%d", replaces = (gpuring_replace)number());
    else if (strcmp(verb, "born") == 0) do_born();
    else if (strcmp(verb, "unlink") == 0) answer(gpuring_unlink(word(), &error));
    else if (strcmp(verb, "subscribe") == 0) do_subscribe();
    else if (strcmp(verb, "unsubscribe") == 0) do_unsubscribe();
    else if (strcmp(verb, "info") == 0) do_info();
    else if (strcmp(verb, "told") == 0) do_told();
    else if (strcmp(verb, "fields") == 0) do_fields();
    else return false;
    return true;
}
