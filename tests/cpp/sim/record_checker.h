#pragma once

// What holds whatever keeps a job's record, and whoever coordinates: no two records have one
// number and generation, and no round is sent before its record is in force. That no node receives
// a lower round after a higher one is checked where it is received (SimAgent).

#include <cstdint>
#include <map>
#include <string>
#include <utility>

#include "elastic/rendezvous_types.h"

namespace elastic::test {

class RecordChecker {
 public:
  // The promise that the record breaks; "": none.
  std::string sent(const RoundRecord& record) {
    const auto [found, is_new] = sent_.try_emplace(record.round, record);
    if (is_new || found->second == record) return "";
    return fault_of(record);
  }
  // The same for a record that is in force, sent or not.
  std::string in_force(const RoundRecord& record) {
    const auto [found, is_new] =
        in_force_.try_emplace(std::pair(record.generation, record.round), record);
    return is_new || found->second == record ? "" : fault_of(record);
  }
  // It is, or a later one that was derived from it.
  bool is_in_force(const RoundRecord& record) const {
    return in_force_.lower_bound(std::pair(record.generation, record.round)) != in_force_.end();
  }

 private:
  static std::string fault_of(const RoundRecord& record) {
    return "I5: two rounds have the number " + std::to_string(record.round);
  }

  std::map<std::uint64_t, RoundRecord> sent_;
  std::map<std::pair<std::uint32_t, std::uint64_t>, RoundRecord> in_force_;
};

}  // namespace elastic::test
