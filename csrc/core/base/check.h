#pragma once

// For broken invariants of our own code only: never for bytes from a socket, for options or for
// results of system calls.

#include <cstdio>
#include <cstdlib>

#define ELASTIC_CHECK(condition)                                                           \
  do {                                                                                     \
    if (!(condition)) {                                                                    \
      std::fprintf(stderr, "elastic: broken invariant at %s:%d: %s\n", __FILE__, __LINE__, \
                   #condition);                                                            \
      std::abort();                                                                        \
    }                                                                                      \
  } while (false)

// Only in builds for development.
#ifdef NDEBUG
#define ELASTIC_DEBUG_CHECK(condition) \
  do {                                 \
  } while (false)
#else
#define ELASTIC_DEBUG_CHECK(condition) ELASTIC_CHECK(condition)
#endif
