/* The book: what is known of every frame, whichever process has died since, and when the books
 * balance.
 *
 * A new condition on frames is a new line in balances(). It may use what processes wrote around
 * their calls. It must not use the ring, because the ring is what is tested.
 */
#include "kill.h"

#include <sys/mman.h>

struct book *book;

bool open_book(void) {
    book = mmap(NULL, sizeof *book, PROT_READ | PROT_WRITE, MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    return book != MAP_FAILED;
}

/* Clears the book only as far as it was written: to clear all would take longer than the round. */
void clear_book(uint64_t frontier) {
    uint64_t used = frontier < MAX_SEQ ? frontier : MAX_SEQ;
    memset(book, 0, offsetof(struct book, frame) + used * sizeof book->frame[0]);
}

/* Keeps the first complaint, because later ones may be its consequences. */
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
        bool gone = f->released; /* released by a member that may have died over it */
        unsigned long long at = s;
        EXPECT(f->lone <= 1 && f->shared <= 1, "frame %llu: %u %u", at, f->lone, f->shared);
        /* If there were no deaths, no process has come to the point. */
        EXPECT(f->mortal <= f->given + now.deaths + !now.deaths, "frame %llu", at);
        EXPECT(!(f->shared && f->mortal) || f->redelivered || f->given, "frame %llu", at);
        EXPECT(!(f->shared && f->released == RELEASED), "frame %llu", at);
        EXPECT(f->published != PUBLISHED || f->lone, "frame %llu", at);
        EXPECT(f->published != PUBLISHED || f->shared || gone, "frame %llu", at);
        EXPECT(f->published || !(f->lone || f->shared || f->mortal), "frame %llu", at);
    }
    return true;
}
