#pragma once

// The checks of a node: when they run, and what follows from what they find (docs/policy.md).
//
// They run before the node joins, which waits for them, and after a failure of one of its workers.
// Then nothing waits: the round is stopped, and the next one begins, while they run. A bad node
// does not join, or leaves the job.
//
// Pure. Not thread-safe. A part of AgentMachine.

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "core/base/node_events.h"
#include "core/base/parts.h"
#include "core/gate/check_result.h"
#include "core/gate/finding.h"
#include "elastic/time.h"

namespace elastic::gate {

enum class Occasion : std::uint8_t { kJoin, kFailure };
constexpr const char* to_string(Occasion occasion) {
  return occasion == Occasion::kJoin ? "join" : "failure";
}

namespace check_action {
// Starts the program of a check; NodeChecks::ended follows.
struct Run {
  std::uint32_t run = 0;  // counts the starts of this node
  std::size_t check = 0;  // its place in the options
  Occasion occasion = Occasion::kJoin;
};
// Kills the program of that run, and all processes of its group. Nothing follows.
struct Kill {
  std::uint32_t run = 0;
};
// For the coordinator, and for the log.
struct Report {
  Finding finding;
};
struct Admit {};  // the node may join
struct Reject {   // it does not join, or leaves
  Finding finding;
};
}  // namespace check_action
using CheckAction = std::variant<check_action::Run, check_action::Kill, check_action::Report,
                                 check_action::Admit, check_action::Reject>;

// The answer to check_action::Run.
struct CheckEnded {
  std::uint32_t run = 0;
  CheckEnd end;
};

enum class CheckState : std::uint8_t {
  kIdle,     // no check runs
  kJoining,  // the node has not joined, and waits
  kBeside,   // they run beside the workers
  kOver,     // the node was rejected, or has ended
};
inline constexpr std::size_t kCheckStates = 4;

enum class CheckInput : std::uint8_t {
  kStart,   // of the node
  kFailed,  // a worker of this node has
  kFound,   // one check has ended, and the node is not bad; others run
  kClear,   // the same, and no other runs
  kBad,
  kEnd,  // of this node's part in the job
};
inline constexpr std::size_t kCheckInputs = 6;

struct NodeCheckOptions {
  std::string host;
  std::vector<std::string> checks;  // their names
  Duration limit = std::chrono::seconds(60);
};

class NodeChecks {
 public:
  using Event = std::variant<core::node_event::Started, core::node_event::WorkerFailed,
                             core::node_event::Ended, CheckEnded, core::PartTick>;
  using Out = std::vector<CheckAction>;
  struct Edge {
    void (NodeChecks::*run)(Out*) = nullptr;
    CheckState next = CheckState::kIdle;
  };
  static const Edge& edge_of(CheckState state, CheckInput input);

  explicit NodeChecks(NodeCheckOptions options) : options_(std::move(options)) {}

  void step(const Event& event, Instant now, Out* out) {
    std::visit([&](const auto& one) { on(one, now, out); }, event);
  }

  std::optional<Instant> next_deadline() const { return deadline_; }

  CheckState state() const { return state_; }
  bool holds_join() const { return state_ == CheckState::kJoining; }

 private:
  struct Running {
    std::uint32_t run = 0;
    std::size_t check = 0;
  };
  struct Table;

  void on(const core::node_event::Started&, Instant now, Out* out) {
    decide(CheckInput::kStart, now, out);
  }
  void on(const core::node_event::WorkerFailed&, Instant now, Out* out) {
    decide(CheckInput::kFailed, now, out);
  }
  void on(const core::node_event::Ended&, Instant now, Out* out) {
    decide(CheckInput::kEnd, now, out);
  }
  // The end of another run than one that is awaited is ignored.
  void on(const CheckEnded& event, Instant now, Out* out);
  // What still runs is killed.
  void on(const core::PartTick&, Instant now, Out* out);

  // Without checks nothing follows.
  void decide(CheckInput input, Instant now, Out* out);
  void find(const Running& one, const CheckEnd& end, Instant now, Out* out);
  // The steps of the table.
  void run_before_join(Out* out) { run_all(Occasion::kJoin, out); }
  void run_beside(Out* out) { run_all(Occasion::kFailure, out); }
  void admit(Out* out);
  void reject(Out* out);
  void kill_all(Out* out);

  void run_all(Occasion occasion, Out* out);

  const NodeCheckOptions options_;
  CheckState state_ = CheckState::kIdle;
  std::uint32_t last_run_ = 0;
  std::vector<Running> running_;
  std::optional<Instant> deadline_;
  Instant now_;
  Finding finding_;  // the last one
};

// "check gpu of host node7: GPU 3 needs a reset"; with ": unknown" if it is.
std::string describe(const Finding& finding);

}  // namespace elastic::gate
