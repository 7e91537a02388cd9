#pragma once

// A witness's part in one job: it votes, and has no node, no session and no coordinator.
//
// A job id may be used again: the witness is another voter, with a register and an id, in each
// lineage.
//
// Pure: time comes with each call, chance from a seed. Not thread-safe. The owner executes the
// actions in order, and calls tick() at next_deadline().

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include <algorithm>
#include "core/base/random.h"

#include "core/register/register_machine.h"
#include "core/succession/succession_events.h"
#include "core/succession/voter_wire.h"

namespace elastic::succession {

// The witness in one lineage. It has no session: it notices the loss of the coordinator by the
// connection of that to this port.
class WitnessVoter {
 public:
  // `self`: of this lineage. `seed`: random.
  WitnessVoter(std::string job_id, const NodeId& self, std::uint64_t seed)
      : job_id_(std::move(job_id)),
        self_(self),
        register_({self, ""}, {.is_candidate = false}, seed) {}

  void receive(const VoterFrame& frame, ConnectionId connection, Instant now,
               std::vector<Action>* actions);
  void connection_ended(ConnectionId connection, Instant now);
  void tick(Instant now, std::vector<Action>* actions);
  std::optional<Instant> next_deadline() const;

  // The newest record; nullopt: it has not voted yet.
  const std::optional<reg::KnownRecord>& known() const { return register_.known(); }

 private:
  void watch_incumbent(const NodeId& from, std::vector<Action>* actions);
  void feed(const reg::Event& event, std::vector<Action>* actions);
  void reply(const NodeId& to, VoterBody body, std::vector<Action>* actions) const;

  std::string job_id_;
  NodeId self_;
  reg::Register register_;
  VoterConnections connections_;
  Instant now_;
  NodeId watched_;                  // the coordinator of the newest record
  std::optional<Instant> lost_at_;  // it counts as lost then
  Duration silence_max_{};          // of it
  Duration reconnect_grace_{};
};

class WitnessedJob {
 public:
  // Lineages of one id at a time. A coordinator probes a witness several times in each
  // node_timeout: a lineage without a frame for kForgetAfter is over.
  static constexpr std::size_t kLineagesMax = 16;
  static constexpr Duration kForgetAfter = std::chrono::minutes(10);

  // `seed`: random; also the source of the voter ids.
  WitnessedJob(std::string job_id, std::uint64_t seed) : job_id_(std::move(job_id)), rng_(seed) {}

  void receive(const Received& event, Instant now, std::vector<Action>* actions);
  void connection_ended(const ConnectionEnded& event, Instant now);
  void tick(Instant now, std::vector<Action>* actions);
  std::optional<Instant> next_deadline() const;

  // No lineage is left: what is created again has other voter ids, and no vote until a record names
  // one of them.
  bool is_over() const { return lineages_.empty(); }
  // A job whose record it keeps must not be forgotten while it runs.
  bool has_voted() const {
    return std::any_of(lineages_.begin(), lineages_.end(),
                       [](const auto& one) { return one.second.voter.known().has_value(); });
  }

 private:
  struct Lineage {
    WitnessVoter voter;
    Instant last_frame;
    std::uint64_t logged_term = 0;
  };

  Lineage* find_or_add(const reg::LineageId& id);

  const std::string job_id_;
  Rng rng_;
  Instant now_;
  std::map<reg::LineageId, Lineage> lineages_;
};

}  // namespace elastic::succession
