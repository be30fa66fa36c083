/* REQUIRE(condition) ends a test program whose condition is untrue, and says which condition that
 * is, and where. REQUIRE(condition, "format", ...) also says more, as printf does.
 *
 * The program says it on stderr and aborts. A program that has to do something else first defines
 * NOT_SO, with the arguments of printf, before it includes this file.
 */
#pragma once

#include <stdio.h>
#include <stdlib.h>

#ifndef NOT_SO
#define NOT_SO(...) (fprintf(stderr, __VA_ARGS__), fputc('\n', stderr), abort())
#endif

#define REQUIRE(condition, ...)                                                                    \
    do {                                                                                           \
        if (!(condition)) {                                                                        \
            char more_[256];                                                                       \
            snprintf(more_, sizeof more_, " " __VA_ARGS__);                                        \
            NOT_SO("%s:%d: not so: %s%s", __FILE__, __LINE__, #condition, more_);                  \
        }                                                                                          \
    } while (0)
