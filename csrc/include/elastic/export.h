#pragma once

// Marks the symbols that the shared library exports; all others have hidden visibility.
#define ELASTIC_EXPORT __attribute__((visibility("default")))
