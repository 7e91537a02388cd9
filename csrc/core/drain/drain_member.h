#pragma once

// A node's part of an agreed step: what it has accepted, and what it replies to its coordinator.
//
// Between the coordinator's orders and the guardian, which alone reads and writes the workers'
// pages. Keeps what the coordinator may ask for again: after a lost session, or as the coordinator
// that follows a lost one, also when the workers are gone. Pure. A part of AgentMachine.

#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/base/node_events.h"
#include "core/drain/drain_types.h"
#include "elastic/time.h"

namespace elastic::core {

class DrainMember {
 public:
  // At most one of the first two.
  struct Answer {
    std::optional<drain::StopStepRequest> request;  // to the guardian
    std::optional<drain::Reply> reply;              // to the coordinator
    // The node leaves the job at this step: its workers stop there.
    std::optional<std::int64_t> leaves_at = {};
    std::string reason = {};  // of the notice, with a request
  };

  using Event = std::variant<node_event::RoundBegan, node_event::WorkerEnded, drain::Order,
                             drain::StopStepEvent>;
  using Out = std::vector<Answer>;
  void step(const Event& event, Instant, Out* out) {
    std::visit([&](const auto& one) { on(one, out); }, event);
  }

  bool is_committed() const { return is_committed_; }
  // Every worker that takes part has stopped, or had ended before.
  bool is_reached() const { return final_ || (is_committed_ && !has_workers()); }

 private:
  void on(const node_event::RoundBegan& event, Out*);
  void on(const node_event::WorkerEnded& event, Out*);
  void on(const drain::Order& order, Out* out) { out->push_back(answer(order)); }
  void on(const drain::StopStepEvent& event, Out* out) { out->push_back(answer(event)); }
  Answer answer(const drain::Order& order);
  Answer answer(const drain::StopStepEvent& event);
  drain::Reply begin_waiting();
  drain::Reply reply_of(drain::Reply::Kind kind) const;
  bool has_workers() const { return num_running_ > 0; }

  std::uint64_t round_ = 0;
  std::vector<std::int32_t> ranks_;  // of the workers, by local rank
  std::vector<bool> has_ended_;      // by local rank
  int num_running_ = 0;
  std::uint64_t proposal_ = 0;
  std::int64_t tentative_ = drain::kNoStep;  // of the last proposal
  std::int64_t accepted_ = drain::kNoStep;   // of the last reply, or committed
  bool is_waiting_ = false;                  // every worker waits at it
  std::optional<drain::Reply> refusal_;      // of the accepted step: a worker has passed it
  bool is_committed_ = false;
  std::optional<drain::Reply> final_;  // the last kReached or kEnded
};

}  // namespace elastic::core
