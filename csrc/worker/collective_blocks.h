#pragma once

// Condenses the collective operations that are over, so that ranks whose operations of the same
// number had different sizes or types are found although nothing failed. Without the C++ runtime.

#include <stddef.h>
#include <stdint.h>

#include "core/hang/signature.h"
#include "worker/recorder_reply.h"

namespace elastic::worker {

// What all ranks must have in common in an operation; `kind` null: its ranks may differ.
struct CommonTensors {
  const hang::SignedOperation* kind;
  const Tensors* tensors;
};
CommonTensors common_tensors(const Operation& operation);

// Which reply of which recorder of the process; both are the same on ranks that are compared.
struct Sample {
  int64_t number;
  int recorder;
};

// Writes a line for each of a few blocks of each group:
//
//   number TAB recorder TAB name TAB description TAB first TAB signature NEWLINE
//
// `first`: the sequence number with which the block begins. The signature (core/hang/signature.h)
// has five bytes for each number: "-----" where no operation was recorded; '.' and a hash of the
// name of an operation whose ranks may have different sizes; else the letter of the operation, and
// a hash of the size and type that all ranks must have in common.
//
// A block is complete: its operations and the next one were recorded, and are over. A group is left
// out if its numbers do not increase. The blocks depend on the numbers, not on how many operations
// the recorder has, so that ranks whose recorders overlap choose the same ones. Returns the bytes
// written. Not thread-safe.
size_t sign_blocks(const char* json, size_t bytes, Sample sample, char* out, size_t size);

}  // namespace elastic::worker
