/* Included before each file (-include): every access to an atomic word is a step, before which an
 * actor may stop. The core has no other way to its shared words. */
#pragma once

#include <stdatomic.h>

void step(void);

#undef atomic_load_explicit
#undef atomic_store_explicit
#undef atomic_exchange_explicit
#undef atomic_compare_exchange_strong_explicit
#undef atomic_compare_exchange_weak_explicit
#undef atomic_fetch_add_explicit
#undef atomic_fetch_sub_explicit
#undef atomic_fetch_or_explicit
#undef atomic_fetch_and_explicit
#define atomic_load_explicit(word, order) (step(), __atomic_load_n(word, order))
#define atomic_store_explicit(word, value, order) (step(), __atomic_store_n(word, value, order))
#define atomic_exchange_explicit(word, value, order) (step(), __atomic_exchange_n(word, value, order))
#define atomic_compare_exchange_strong_explicit(word, was, value, order, other)                    \
    (step(), __atomic_compare_exchange_n(word, was, value, 0, order, other))
#define atomic_compare_exchange_weak_explicit atomic_compare_exchange_strong_explicit
#define atomic_fetch_add_explicit(word, value, order) (step(), __atomic_fetch_add(word, value, order))
#define atomic_fetch_sub_explicit(word, value, order) (step(), __atomic_fetch_sub(word, value, order))
#define atomic_fetch_or_explicit(word, value, order) (step(), __atomic_fetch_or(word, value, order))
#define atomic_fetch_and_explicit(word, value, order) (step(), __atomic_fetch_and(word, value, order))
