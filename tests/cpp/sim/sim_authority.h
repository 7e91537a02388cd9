#pragma once

// Makes the decisions of a simulated job.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "core/rendezvous/rendezvous_events.h"
#include "sim/rendezvous_checker.h"
#include "sim/sim_agent.h"

namespace elastic::test {

class SimAuthority {
 public:
  using Log = std::function<void(const std::string&)>;

  SimAuthority(SimClock* clock, JobSettings settings, Log log_progress)
      : clock_(clock),
        settings_(settings),
        checker_(std::move(settings)),
        note_(std::move(log_progress)) {}
  virtual ~SimAuthority() = default;
  SimAuthority(const SimAuthority&) = delete;
  SimAuthority& operator=(const SimAuthority&) = delete;

  // A connection for the agent; null: no listener.
  virtual std::shared_ptr<SimLink> connect(SimAgent* agent) = 0;
  virtual std::string describe() const = 0;
  virtual std::uint32_t generation() const = 0;
  // The promise that it broke; empty if none.
  virtual std::string fault() const = 0;

  const RendezvousChecker& checker() const { return checker_; }
  std::uint64_t steps() const { return steps_; }
  // When each round began, in order.
  const std::vector<Instant>& rounds_began() const { return rounds_began_; }
  int lives() const { return lives_; }  // how often it was started
  Duration time_stalled() const { return time_stalled_; }

 protected:
  void record_rounds() {
    if (checker_.rounds_seen() > rounds_began_.size()) rounds_began_.push_back(clock_->now());
  }

  SimClock* clock_;
  JobSettings settings_;
  RendezvousChecker checker_;
  Log note_;
  std::uint64_t steps_ = 0;
  std::vector<Instant> rounds_began_;
  int lives_ = 0;
  Duration time_stalled_{};
};

}  // namespace elastic::test
