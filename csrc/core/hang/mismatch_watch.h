#pragma once

// Finds ranks that call collective operations of different sizes or types and complete them: gloo
// then truncates or garbles the result without an error.
//
// Pure. A part of HangWatch.

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <tuple>
#include <vector>

#include "core/base/worker_evidence.h"
#include "core/hang/hang_types.h"
#include "elastic/time.h"

namespace elastic::core {

// What the workers of a node have published of their newest sample, joined where it is equal. Left
// out: groups of which all members are on this node, if their operations agree. At most
// hang::kSignaturesMax; lines that cannot be read are skipped. Without the round. `wall_now`:
// nanoseconds since 1970.
hang::NodeSignatures node_signatures(const std::vector<WorkerEvidence>& workers,
                                     std::int64_t wall_now);

// From the first message of a sample to the comparison: workers publish within a second, and their
// node reports it in about two.
inline constexpr Duration kSignaturesTimeout = std::chrono::seconds(5);
// Groups of which a difference is reported in one round. Each is reported once.
inline constexpr std::size_t kMismatchesMax = 8;

struct Mismatch {
  std::int32_t suspect = -1;  // the rank that differs from all others; -1: several, or unknown
  std::string text;           // one sentence
};

class MismatchWatch {
 public:
  void add(const hang::NodeSignatures& node, Instant now);
  // When compare() is due; nullopt: nothing was received.
  std::optional<Instant> due_at() const { return due_at_; }
  // The differences of the sample that were not reported before.
  std::vector<Mismatch> compare();
  // The last difference of the round; "": there is none.
  const std::string& last() const { return last_; }

  void shift(Duration gap);
  // The round is over.
  void clear() { *this = {}; }

 private:
  // Ranks whose signature of a block is equal.
  struct Variant {
    std::string signature;
    std::size_t count = 0;
    std::vector<std::int32_t> ranks;  // the first of them
  };
  struct Block {
    std::string description;
    std::vector<Variant> variants;
  };
  using Key = std::tuple<std::string, std::uint8_t, std::uint64_t>;  // group, recorder, first

  std::optional<Mismatch> compare(const Key& key, const Block& block) const;

  std::int64_t sample_ = 0;
  std::optional<Instant> due_at_;
  std::map<Key, Block> blocks_;  // of the sample
  std::set<std::string> reported_;
  std::string last_;
};

}  // namespace elastic::core
