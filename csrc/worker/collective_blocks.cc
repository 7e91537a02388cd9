#include "worker/collective_blocks.h"

#include <cstdint>
#include <cstdio>
#include <cstring>

#include "core/hang/signature.h"
#include "worker/recorder_reply.h"

// Theory of operation. Two passes over the reply: the first one finds which blocks of each group
// are complete and chooses a few, the second one writes their signatures.
//
// Only what must be equal on all ranks is signed. The shape is no part of it: an all_reduce of [4]
// and of [2, 2] is right. Of operations in which ranks may differ, such as all_to_all, gather and
// scatter, only the name is signed, which tells whether two ranks count the same operations.
//
// The chosen blocks are those whose index is divisible by the highest powers of two, of the whole
// recorder, of its newest half, quarter and eighth: most of two windows that overlap choose the
// same, and every choice changes as the job continues.

namespace elastic::worker {
namespace {

using hang::CommonSize;
using hang::kBlockOperations;
using hang::kSignatureBytes;
using hang::kSignBytes;

constexpr int kSignedGroupsMax = 32;
constexpr int kBlocksPerGroup = 4;

struct Block {
  uint64_t index;
  char signature[kSignatureBytes + 1];
};

struct SignedGroup {
  char name[64];
  char description[64];
  uint64_t first;
  uint64_t last;
  uint64_t open;  // the first one that is not over; 0: none
  bool is_increasing;
  int num_blocks;
  Block blocks[kBlocksPerGroup];
};

struct SignedGroups {
  SignedGroup all[kSignedGroupsMax];
  int count;
};

uint32_t hash_of(const char* text, uint32_t value = 0x811c9dc5) {
  for (; *text != '\0'; ++text) value = (value ^ static_cast<unsigned char>(*text)) * 0x01000193;
  return value;
}

uint32_t fold(uint64_t value) {
  value ^= value >> 33;
  value *= 0xff51afd7ed558ccd;
  value ^= value >> 33;
  value *= 0xc4ceb9fe1a85ec53;
  return static_cast<uint32_t>(value ^ (value >> 33));
}

void sign(const Operation& operation, char* out) {
  char text[kSignBytes + 1];
  const CommonTensors common = common_tensors(operation);
  const bool is_common = common.kind != nullptr;
  uint32_t value = is_common
                       ? fold(common.tensors->elements ^ (uint64_t{hash_of(operation.types)} << 32))
                       : hash_of(operation.name);
  value = (value ^ (value >> 16)) & 0xffff;
  std::snprintf(text, sizeof text, "%c%04x",
                is_common ? common.kind->letter : hang::kOtherOperation,
                static_cast<unsigned>(value));
  std::memcpy(out, text, kSignBytes);
}

SignedGroup* group_of(const char* name, SignedGroups* groups) {
  for (int i = 0; i < groups->count; ++i) {
    if (std::strcmp(groups->all[i].name, name) == 0) return &groups->all[i];
  }
  return nullptr;
}

bool is_signed(const Operation& operation) {
  return !operation.is_point_to_point && operation.sequence != 0;
}

void note_number(const Operation& operation, SignedGroups* groups) {
  SignedGroup* group = group_of(operation.group, groups);
  if (group == nullptr && groups->count == kSignedGroupsMax) return;
  if (group == nullptr) {
    group = &groups->all[groups->count++];
    *group = {};
    std::memcpy(group->name, operation.group, sizeof group->name);
    std::memcpy(group->description, operation.description, sizeof group->description);
    group->first = operation.sequence;
    group->is_increasing = true;
  }
  group->is_increasing &= operation.sequence > group->last;
  group->last = operation.sequence;
  if (!operation.is_over && group->open == 0) group->open = operation.sequence;
}

// The block in [begin, end) whose index is divisible by the highest power of two.
uint64_t roundest(uint64_t begin, uint64_t end) {
  uint64_t found = end - 1;
  for (uint64_t step = 1; step != 0; step *= 2) {
    const uint64_t candidate = (end - 1) / step * step;
    if (candidate < begin) break;
    found = candidate;
    if (candidate == 0) break;
  }
  return found;
}

void choose_blocks(SignedGroup* group) {
  if (!group->is_increasing) return;
  const uint64_t begin =
      group->first <= 1 ? 0 : (group->first + kBlockOperations - 1) / kBlockOperations;
  uint64_t end = group->last / kBlockOperations;  // the block of the last one may grow
  if (group->open != 0 && group->open / kBlockOperations < end) {
    end = group->open / kBlockOperations;
  }
  if (begin >= end) return;
  for (uint64_t part = 1; part <= 8; part *= 2) {
    const uint64_t newest = (end - begin + part - 1) / part;
    const uint64_t index = roundest(end - newest, end);
    bool is_known = false;
    for (int i = 0; i < group->num_blocks; ++i) is_known |= group->blocks[i].index == index;
    if (is_known) continue;
    Block& block = group->blocks[group->num_blocks++];
    block.index = index;
    std::memset(block.signature, hang::kNoOperation, kSignatureBytes);
    block.signature[kSignatureBytes] = '\0';
  }
}

void sign(const Operation& operation, SignedGroups* groups) {
  SignedGroup* const group = group_of(operation.group, groups);
  if (group == nullptr) return;
  for (int i = 0; i < group->num_blocks; ++i) {
    Block& block = group->blocks[i];
    if (operation.sequence / kBlockOperations != block.index) continue;
    sign(operation, block.signature + operation.sequence % kBlockOperations * kSignBytes);
  }
}

}  // namespace

CommonTensors common_tensors(const Operation& operation) {
  const hang::SignedOperation* const one = hang::find_signed_operation(operation.name);
  if (one == nullptr) return {};
  const bool is_output = one->common == CommonSize::kOutputs;
  const Tensors& tensors = is_output ? operation.outputs : operation.inputs;
  const bool is_one = one->common != CommonSize::kOneInput || tensors.count == 1;
  if (!tensors.is_known || tensors.count == 0 || !is_one) return {};
  return {one, &tensors};
}

size_t sign_blocks(const char* json, size_t bytes, Sample sample, char* out, size_t size) {
  static SignedGroups groups;
  groups.count = 0;
  const bool is_read = for_each_operation(json, bytes, [](const Operation& operation) {
    if (is_signed(operation)) note_number(operation, &groups);
  });
  if (!is_read) return 0;
  for (int i = 0; i < groups.count; ++i) choose_blocks(&groups.all[i]);
  for_each_operation(json, bytes, [](const Operation& operation) {
    if (is_signed(operation)) sign(operation, &groups);
  });
  size_t written = 0;
  for (int i = 0; i < groups.count; ++i) {
    const SignedGroup& group = groups.all[i];
    for (int j = 0; j < group.num_blocks; ++j) {
      const Block& block = group.blocks[j];
      char line[384];
      const int length = std::snprintf(
          line, sizeof line, "%lld\t%d\t%s\t%s\t%llu\t%s\n", static_cast<long long>(sample.number),
          sample.recorder, group.name, group.description,
          static_cast<unsigned long long>(block.index * kBlockOperations), block.signature);
      if (length <= 0 || static_cast<size_t>(length) >= sizeof line ||
          written + static_cast<size_t>(length) > size) {
        return written;
      }
      std::memcpy(out + written, line, static_cast<size_t>(length));
      written += static_cast<size_t>(length);
    }
  }
  return written;
}

}  // namespace elastic::worker
