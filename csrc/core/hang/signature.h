#pragma once

// The signature of a block of collective operations, which a worker publishes and its coordinator
// compares (worker/collective_blocks.h), and what all ranks of an operation must have in common.
//
// Plain values, also for workers without the C++ runtime.

#include <cstddef>
#include <cstdint>
#include <cstring>

namespace elastic::hang {

// From sample to sample of a worker at least this: the number of a sample is the time of the wall
// clock, in this unit.
inline constexpr std::int64_t kSampleSeconds = 10;
// A block has the operations of a group from a multiple of this number on.
inline constexpr std::uint64_t kBlockOperations = 32;
// Of one operation in a signature: a letter for its kind, and four hexadecimal digits.
inline constexpr std::size_t kSignBytes = 5;
inline constexpr std::size_t kSignatureBytes = kBlockOperations * kSignBytes;
// Instead of the letter: no operation of this number was recorded, or it is none of these.
inline constexpr char kNoOperation = '-';
inline constexpr char kOtherOperation = '.';

// Instead of an operation, in the line of a group without a name: why a worker sees none.
inline constexpr const char* kRecorderOff = "off";
inline constexpr const char* kNoRecorder = "none";

// What all ranks must have in common.
enum class CommonSize : std::uint8_t { kInputs, kOneInput, kOutputs };

// The operations with a size that all ranks must have in common.
struct SignedOperation {
  const char* name;
  char letter;
  CommonSize common;
};
// The ranks of an all_gather or reduce_scatter may contribute different sizes, but their sum is
// known to all of them.
inline constexpr SignedOperation kSignedOperations[] = {
    {"all_reduce", 'r', CommonSize::kInputs},
    {"broadcast", 'b', CommonSize::kOneInput},
    {"reduce", 'd', CommonSize::kInputs},
    {"all_gather", 'g', CommonSize::kOutputs},
    {"_all_gather_base", 'a', CommonSize::kOutputs},
    {"reduce_scatter", 's', CommonSize::kInputs},
    {"_reduce_scatter_base", 'c', CommonSize::kInputs},
    {"allreduce_coalesced", 'R', CommonSize::kInputs},
    {"all_gather_into_tensor_coalesced", 'A', CommonSize::kOutputs},
    {"reduce_scatter_tensor_coalesced", 'S', CommonSize::kInputs},
};
// nullptr: the ranks of this operation may differ.
inline const SignedOperation* find_signed_operation(const char* name) {
  for (const SignedOperation& one : kSignedOperations) {
    if (std::strcmp(one.name, name) == 0) return &one;
  }
  return nullptr;
}

}  // namespace elastic::hang
