#pragma once

// What follows a failure: the first rule that matches decides (docs/policy.md). The rules of the
// user come first, then the advice of their function, then the default rules, of which one matches
// each event: a failure is charged to the budget of restarts, and a loss only if too few nodes are
// left.
//
// Pure: the events so far and the rules give the decision.

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "elastic/rendezvous_types.h"
#include "elastic/time.h"

namespace elastic::core {

enum class FailureKind : std::uint8_t {
  kWorker,
  kHang,
  kNodeLost,
  kNodeLeft,     // by itself: only the default rules decide
  kUnstartable,  // the program of a worker cannot be executed on any node
  kCheck,        // a check has found the host of a node bad, and the node has left
  kStraggler,    // a rank makes no progress while others advance: nothing has ended yet
};

// A failure, or the loss of a node, that has ended a round.
struct FailureEvent {
  FailureKind kind = FailureKind::kWorker;
  int exit_code = 0;
  FailureClass failure_class = FailureClass::kUserWorker;
  std::string error = {};                    // the exception, or the last line of the output
  std::string host = {};                     // of the worker, or the node that was lost
  bool enough_left = true;                   // after a departure: MIN nodes
  std::optional<FailureAdvice> advice = {};  // decides where no rule of the user matches
};

// What is given must hold.
struct FailureCondition {
  std::optional<FailureKind> kind = {};
  std::vector<std::pair<int, int>> codes = {};  // of a worker: ranges; 128+N: signal N
  std::optional<FailureClass> failure_class = {};
};

struct FailureRule {
  std::string name;                       // in messages: "rule 2 (line 7) of the failure policy"
  std::string origin = {};                // "line 7", or the option that the rule stands for
  std::vector<FailureCondition> on = {};  // one of them must hold; empty: every failure
  // And these.
  std::string text = {};  // a part of the error
  int same_host = 0;      // this failure and those before it, in a row, were this many of its host
  int host_count = 0;     // so many failures were of its host, with this one, in `within`
  Duration lasting{};     // kStraggler: for so long
  std::optional<bool> enough_left = {};
  // What it decides.
  FailureAction action = FailureAction::kRestart;
  bool node_leaves = false;         // the restart is one of the other nodes
  std::optional<bool> counts = {};  // against the restart budget; nullopt: as without a rule
  int max = -1;                     // it restarts this often, then it stops; -1: no limit
  Duration within{};                // of these times; zero: of all
};

// The first rule about a rank that lags for this long; nullptr: none.
const FailureRule* find_straggler_rule(const std::vector<FailureRule>& rules, Duration idle);
// The shortest time after which one matches; nullopt: no rule is about stragglers.
std::optional<Duration> straggler_limit(const std::vector<FailureRule>& rules);

// A failure that was decided.
struct PastFailure {
  Instant at;
  std::string host;
  int rule = -1;  // its index; -1: none
};
inline constexpr std::size_t kPastFailuresMax = 256;

struct FailureRules {
  std::vector<FailureRule> of_user;
  std::vector<FailureRule> defaults;  // REQUIRES: each decides `counts`, and one matches each event
};

struct FailureDecision {
  FailureAction action = FailureAction::kRestart;
  bool counts = true;
  int rule = -1;  // its index among those of the user; -1: none of them
  // "rule 2 (line 7) of the failure policy", and when it stops "… ends the job" or "… allows 3
  // restarts"; of advice likewise; "": a default rule lets the job go on.
  std::string why = {};
};

FailureDecision decide_failure(const FailureRules& rules, const std::vector<PastFailure>& past,
                               const FailureEvent& event, Instant now);
// Without the rules of the user.
FailureDecision decide_by_default(const FailureRules& rules, const FailureEvent& event);
// The first that matches; nullptr: none.
const FailureRule* find_rule(const std::vector<FailureRule>& rules, const FailureEvent& event);

// "exit 3,64-78 or signal KILL: restart, not counted, at most 3 within 1 h (line 7)".
std::string describe(const FailureRule& rule);

// Rules as settings of a job (JobSettings::extra), one in each, in their order. The value has
// "name=value" with spaces between them; "text=" comes last, and reaches to the end:
// "line=7 on=exit:3,64-78;hang;node-lost;class:platform host=3 times=5 for=30 do=restart count=0
// max=3 within=60 text=…". "from=" instead of "line=" names the option that the rule stands for.
inline constexpr std::string_view kPolicyFile = "failure policy, ";
inline constexpr std::string_view kPolicySetting = "failure policy, rule ";
// After so many rounds in a row that ended by a failure or a loss, and whose last step did not pass
// the best one, the job stops.
inline constexpr std::string_view kProgressSetting = "failure policy, stop_without_progress";
int stop_without_progress(const JobSettings& settings);  // 0: there is no limit
// Whether a file of the user's has rules, a limit of rounds or a function.
bool has_policy(const JobSettings& settings);
// What all nodes must have in common of such a setting, for people: the line of a rule may differ.
std::string agreed_text(std::string_view name, const std::string& value);
Result<FailureRule> parse_failure_rule(std::string_view text, int number);
// Those of the settings. A rule that cannot be read is left out.
FailureRules failure_rules(const JobSettings& settings);

}  // namespace elastic::core
