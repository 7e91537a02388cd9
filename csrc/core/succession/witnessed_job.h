#pragma once

// A witness's part in one job: it votes, and has no node, no session and no coordinator.
//
// A job id may be used again, and an operator may replace a lineage: the witness has a machine, and
// so a register and a voter id, for each lineage. Pure; the same contract as succession::Machine.

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/rng.h"
#include "core/succession/succession_machine.h"

namespace elastic::succession {

class WitnessedJob {
 public:
  // Lineages of one id at a time. A coordinator probes a witness several times in each
  // node_timeout: a lineage without a frame for kForgetAfter is over.
  static constexpr std::size_t kLineagesMax = 16;
  static constexpr Duration kForgetAfter = std::chrono::minutes(10);

  // `seed`: random; also the source of the voter ids.
  WitnessedJob(std::string job_id, std::uint64_t seed) : job_id_(std::move(job_id)), rng_(seed) {}

  void receive(const Received& event, Instant now, std::vector<Action>* actions);
  void connection_ended(const ConnectionEnded& event, Instant now, std::vector<Action>* actions);
  void tick(Instant now, std::vector<Action>* actions);
  std::optional<Instant> next_deadline() const;

  // No lineage is left: what is created again has other voter ids, and no vote until a record names
  // one of them.
  bool is_over() const { return lineages_.empty(); }

 private:
  struct Lineage {
    std::unique_ptr<Machine> machine;
    Instant last_frame;
    std::vector<Replaced> replaces;  // of its records
    std::uint64_t logged_term = 0;
  };
  using Lineages = std::map<reg::LineageId, Lineage>;

  Lineage* find_or_add(const reg::LineageId& id);
  bool replace_others(const reg::LineageId& id, const reg::Message& message, Lineage* lineage);
  void step(Lineage* lineage, const Event& event, std::vector<Action>* actions);
  void refuse(const VoterFrame& frame, ConnectionId connection, std::vector<Action>* actions);

  const std::string job_id_;
  Rng rng_;
  Instant now_;
  Lineages lineages_;
};

}  // namespace elastic::succession
