#pragma once

// The questions about failed workers that a function of the user answers (docs/policy.md): one for
// each worker of a round that has failed on this node.
//
// Pure. Not thread-safe. A part of AgentMachine.

#include <map>
#include <optional>
#include <variant>
#include <vector>

#include "core/agent/agent_policy.h"
#include "core/base/node_events.h"
#include "core/base/parts.h"
#include "elastic/time.h"

namespace elastic::core {

// The answers about these workers came too late.
struct Unanswered {
  std::vector<int> local_ranks;
};

class AdviceQuestions {
 public:
  using Event = std::variant<node_event::RoundBegan, PartTick>;
  using Out = std::vector<Unanswered>;
  void step(const Event& event, Instant, Out* out) {
    std::visit([&](const auto& one) { on(one, out); }, event);
  }

  // `limit`: for all answers of a round; zero: none is asked for.
  explicit AdviceQuestions(Duration limit) : limit_(limit) {}

  // More is known about a failure. True: it is new, and to be asked about.
  bool ask(const WorkerExited& found, Instant now);
  // What is known about that worker, with the answer; nullopt: it was not awaited, or says nothing.
  std::optional<WorkerExited> answer(int local_rank, const std::optional<FailureAdvice>& advice);
  bool is_waiting() const { return until_.has_value(); }
  std::optional<Instant> next_deadline() const { return until_; }
  // The local ranks without an answer, which are not waited for any longer.
  std::vector<int> give_up();
  void clear();

 private:
  void on(const node_event::RoundBegan&, Out*) { clear(); }
  void on(const PartTick&, Out* out) { out->push_back({give_up()}); }

  const Duration limit_;
  std::map<int, std::optional<WorkerExited>> asked_;  // by local rank; nullopt: was answered
  std::optional<Instant> until_;                      // while an answer is awaited
};

}  // namespace elastic::core
