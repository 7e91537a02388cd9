#pragma once

// The workers of one agent that report steps, and the pages in which their guardian reads them. The
// ranks of a round compute together: none is more than one step ahead of another one.

#include <cstddef>
#include <cstdint>
#include <vector>

#include "core/drain/drain_world.h"

namespace elastic::test {

class SimAgent;
class SimAgentWorld;

class SimRanks : private core::drain_sim::World {
 public:
  // The agent outlives its ranks.
  SimRanks(SimAgent* agent, SimAgentWorld* world);

  void begin(std::uint64_t round, int first_rank, int count, std::int64_t steps,
             Duration step_time);
  // They make no further step: they hang, or are being stopped.
  void halt() { ++era_; }
  // No process is left.
  void end();
  void obey(const drain::Order& order);

  // The last step that each of them has made; INT64_MAX: they have ended.
  std::int64_t slowest_step() const { return slowest(); }
  // Those that have not ended wait there.
  bool wait_at(std::int64_t step) const { return all_wait(step); }
  // The steps at which ranks have stopped, since it was agreed on.
  std::vector<std::int64_t> stopped_at() const { return stops(); }
  // The step that they must not pass.
  std::int64_t tentative() const;

 private:
  void access(std::size_t rank, std::uint64_t era);
  void report_steps(std::uint64_t era);
  void report();
  void guard_soon();
  void turn();

  SimAgent* agent_;
  SimAgentWorld* world_;
  std::uint64_t era_ = 0;  // counts groups of workers
  Duration step_time_{};
  bool is_turn_due_ = false;
};

}  // namespace elastic::test
