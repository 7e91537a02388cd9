#pragma once

// Marks what the shared library exports; everything else is built with hidden visibility.
#define ELASTIC_EXPORT __attribute__((visibility("default")))
