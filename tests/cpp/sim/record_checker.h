#pragma once

// What holds whatever keeps a job's record, and whoever coordinates: no two records have one
// number. That no node receives a lower round after a higher one is checked where it is received
// (SimAgent).

#include <cstdint>
#include <map>
#include <string>

#include "elastic/rendezvous_types.h"

namespace elastic::test {

class RecordChecker {
 public:
  // The promise that the record breaks; "": none.
  std::string sent(const RoundRecord& record) {
    const auto [found, is_new] = sent_.try_emplace(record.round, record);
    if (is_new || found->second == record) return "";
    return "I5: two rounds have the number " + std::to_string(record.round);
  }

 private:
  std::map<std::uint64_t, RoundRecord> sent_;
};

}  // namespace elastic::test
