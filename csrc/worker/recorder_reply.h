#pragma once

// Reads a reply of torch's flight recorder: JSON of any version that has these keys. Without the
// C++ runtime.

#include <stddef.h>
#include <stdint.h>

namespace elastic::worker {

// The tensors of one side of an operation.
struct Tensors {
  bool is_known = false;  // the reply has their sizes
  uint32_t count = 0;
  uint64_t elements = 0;  // of all of them
};

// A collective operation of torch.distributed. All text is printable ASCII without tabs, and may be
// cut.
struct Operation {
  char group[64];
  char description[64];  // of the group
  char name[48];         // "all_reduce"
  char sizes[64];        // of the inputs: "[[4,2]]"
  char types[32];        // likewise: "[Float]"
  uint64_t sequence;     // in the group, from 1; 0: unknown
  int64_t created;       // when it was entered, in nanoseconds since 1970
  bool is_over;
  bool is_point_to_point;
  Tensors inputs;
  Tensors outputs;
};

using OnOperation = void (*)(void* context, const Operation& operation);

// Calls on_operation() for each operation, in the order in which they were recorded. False: the
// reply cannot be read to its end.
bool read_operations(const char* json, size_t bytes, OnOperation on_operation, void* context);

// The same with a callable.
template <typename Use>
bool for_each_operation(const char* json, size_t bytes, Use use) {
  const auto call = [](void* context, const Operation& operation) {
    (*static_cast<Use*>(context))(operation);
  };
  return read_operations(json, bytes, call, &use);
}

}  // namespace elastic::worker
