#pragma once

// For broken invariants of our own code only: never for bytes from a socket, for options or for
// results of system calls.

#include <cstdio>
#include <cstdlib>

// Without its directories: a compiler cache then finds the same text in a copy of the sources.
#ifdef __FILE_NAME__
#define ELASTIC_FILE_NAME __FILE_NAME__
#else  // before GCC 12
#define ELASTIC_FILE_NAME __FILE__
#endif

#define ELASTIC_CHECK(condition)                                                          \
  do {                                                                                    \
    if (!(condition)) {                                                                   \
      std::fprintf(stderr, "elastic: broken invariant at %s:%d: %s\n", ELASTIC_FILE_NAME, \
                   __LINE__, #condition);                                                 \
      std::abort();                                                                       \
    }                                                                                     \
  } while (false)

// Only in builds for development.
#ifdef NDEBUG
#define ELASTIC_DEBUG_CHECK(condition) \
  do {                                 \
  } while (false)
#else
#define ELASTIC_DEBUG_CHECK(condition) ELASTIC_CHECK(condition)
#endif
