#pragma once

// The agents decide together over a compare-and-set store: each runs a machine of its own over the
// shared bytes (core/rendezvous/shared_state_machine), polls, writes, and learns what others have
// decided.

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "sim/sim_authority.h"

namespace elastic::test {

class SimShared : public SimAuthority {
 public:
  SimShared(SimClock* clock, Dice* dice, JobSettings settings, Log log_progress);
  ~SimShared() override;

  std::shared_ptr<SimLink> connect(SimAgent* agent) override;
  std::string describe() const override;
  std::uint32_t generation() const override;
  std::string fault() const override { return fault_; }

 private:
  // One agent's side: core::SharedStateMachine, and its link to the store.
  class Replica;
  friend class Replica;
  Rendezvous stored() const;

  Dice* dice_;
  std::string bytes_;        // what the store holds
  std::uint64_t token_ = 0;  // counts the writes
  std::vector<std::unique_ptr<Replica>> replicas_;
  std::string fault_;
};

}  // namespace elastic::test
