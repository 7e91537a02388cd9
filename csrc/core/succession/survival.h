#pragma once

// Which losses of hosts a job survives, as one sentence for its log. Pure.

#include <cstddef>
#include <string>

namespace elastic::succession {

// Fewer voters survive no loss.
inline constexpr std::size_t kVotersNeeded = 3;

struct SurvivalFacts {
  std::size_t voters = 0;      // that keep the job's record; below kVotersNeeded: the coordinator
  std::size_t lost = 0;        // of them, that the coordinator does not reach
  bool wants_voters = true;    // voters is not 1
  std::string host = {};       // of the coordinator; "": unknown
  std::string unreached = {};  // voter ports of further hosts that did not answer, as a list
  bool has_witness = false;    // one is configured
  std::string unreached_witnesses = {};
  // The round's nodes; 0: no round was formed yet.
  int nodes = 0;
  int min_nodes = 1;
  int spares = 0;
  int restarts_left = 0;
};

std::string describe_survival(const SurvivalFacts& facts);

}  // namespace elastic::succession
