/* The book: what is known of every frame, whoever has died since, and when the books balance.
 *
 * Another thing that must hold of a frame is a line in balances().  It may rest on what processes wrote
 * around their calls, never on the ring: the ring is what is being judged. */
#include "kill.h"

#include <sys/mman.h>

struct book *book;

bool open_book(void) {
    book = mmap(NULL, sizeof *book, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return book != MAP_FAILED;
}

/* Only as far as it was written: the whole of it would cost more than the round. */
void clear_book(uint64_t frontier) {
    uint64_t used = frontier < MAX_SEQ ? frontier : MAX_SEQ;
    memset(book, 0, offsetof(struct book, frame) + used * sizeof book->frame[0]);
}

/* The first complaint is the one to read: what follows may be its consequence. */
void complain(const char *format, ...) {
    int none = 0;
    if (!atomic_compare_exchange_strong(&book->failed, &none, 1)) return;
    va_list arguments;
    va_start(arguments, format);
    vsnprintf(book->complaint, sizeof book->complaint, format, arguments);
    va_end(arguments);
}

bool balances(uint64_t frontier) {
    for (uint64_t s = now.slots; s < frontier && s < MAX_SEQ; s++) {
        struct frame *f = &book->frame[s];
        bool gone = f->released; /* by a member who may have died over it */
        unsigned long long at = s;
        EXPECT(f->lone <= 1 && f->shared <= 1, "frame %llu: %u %u", at, f->lone, f->shared);
        EXPECT(f->mortal <= f->given + now.deaths + !now.deaths, "frame %llu", at); /* none: nobody came to the point */
        EXPECT(!(f->shared && f->mortal) || f->redelivered || f->given, "frame %llu", at);
        EXPECT(!(f->shared && f->released == RELEASED), "frame %llu", at);
        EXPECT(f->published != PUBLISHED || f->lone, "frame %llu", at);
        EXPECT(f->published != PUBLISHED || f->shared || gone, "frame %llu", at);
        EXPECT(f->published || !(f->lone || f->shared || f->mortal), "frame %llu", at);
    }
    return true;
}
