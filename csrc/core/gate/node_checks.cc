#include "core/gate/node_checks.h"

#include <algorithm>
#include <utility>

#include "core/base/text.h"
#include "core/base/transitions.h"

// Theory of operation. All checks run at once, with one deadline. The first that finds the node bad
// decides, and the others are killed. A check whose time is over is killed and not awaited: its
// process may be in an uninterruptible wait, which is what it was to find out.

namespace elastic::gate {

struct NodeChecks::Table {
  using enum CheckState;
  using enum CheckInput;
  using N = NodeChecks;
  using Row = core::Transition<CheckState, CheckInput, void (NodeChecks::*)(Out*)>;

  static constexpr Row kRows[] = {
      {.in = {kIdle}, .on = {kStart}, .run = &N::run_before_join, .next = kJoining},
      {.in = {kIdle}, .on = {kFailed}, .run = &N::run_beside, .next = kBeside},

      {.in = {kJoining}, .on = {kClear}, .run = &N::admit, .next = kIdle},
      {.in = {kJoining, kBeside}, .on = {kBad}, .run = &N::reject, .next = kOver},
      {.in = {kBeside}, .on = {kClear}, .run = &N::admit, .next = kIdle},
      {.in = {kIdle, kJoining, kBeside}, .on = {kEnd}, .run = &N::kill_all, .next = kOver},
  };

  using Edges = core::TransitionTable<Edge, kCheckStates, kCheckInputs>;
  // A worker that fails while the checks of another failure run begins no further ones.
  static constexpr Edge without_row(CheckState state, CheckInput) { return {nullptr, state}; }
};

static_assert(static_cast<std::size_t>(CheckState::kOver) + 1 == kCheckStates);
static_assert(static_cast<std::size_t>(CheckInput::kEnd) + 1 == kCheckInputs);

const NodeChecks::Edge& NodeChecks::edge_of(CheckState state, CheckInput input) {
  static constexpr auto kTable =
      core::make_transitions<Table::Edges>(Table::kRows, &Table::without_row);
  return kTable[static_cast<std::size_t>(state)][static_cast<std::size_t>(input)];
}

void NodeChecks::decide(CheckInput input, Instant now, Out* out) {
  if (options_.checks.empty()) return;
  now_ = now;
  const Edge& edge = edge_of(state_, input);
  state_ = edge.next;
  if (edge.run != nullptr) (this->*edge.run)(out);
}

void NodeChecks::run_all(Occasion occasion, Out* out) {
  deadline_ = add_saturating(now_, options_.limit);
  for (std::size_t check = 0; check < options_.checks.size(); ++check) {
    running_.push_back({++last_run_, check});
    out->emplace_back(check_action::Run{last_run_, check, occasion});
  }
}

void NodeChecks::on(const CheckEnded& event, Instant now, Out* out) {
  const auto found = std::find_if(running_.begin(), running_.end(),
                                  [&](const Running& one) { return one.run == event.run; });
  if (found == running_.end()) return;
  const Running one = *found;
  running_.erase(found);
  find(one, event.end, now, out);
}

void NodeChecks::on(const core::PartTick&, Instant now, Out* out) {
  if (!deadline_ || now < *deadline_) return;
  deadline_.reset();
  while (!running_.empty()) {
    const Running one = running_.front();
    running_.erase(running_.begin());
    out->emplace_back(check_action::Kill{one.run});
    find(one, {.exit = {}, .limit = options_.limit}, now, out);
  }
}

void NodeChecks::find(const Running& one, const CheckEnd& end, Instant now, Out* out) {
  CheckResult result = result_of(end);
  finding_ = {.host = options_.host,
              .check = options_.checks[one.check],
              .verdict = result.verdict,
              .reason = std::move(result.reason)};
  out->emplace_back(check_action::Report{finding_});
  const CheckInput input = result.verdict == Verdict::kBad ? CheckInput::kBad
                           : running_.empty()              ? CheckInput::kClear
                                                           : CheckInput::kFound;
  decide(input, now, out);
}

void NodeChecks::admit(Out* out) {
  deadline_.reset();
  out->emplace_back(check_action::Admit{});
}

void NodeChecks::reject(Out* out) {
  kill_all(out);
  out->emplace_back(check_action::Reject{finding_});
}

void NodeChecks::kill_all(Out* out) {
  deadline_.reset();
  for (const Running& one : std::exchange(running_, {})) {
    out->emplace_back(check_action::Kill{one.run});
  }
}

std::string describe(const Finding& finding) {
  std::string text = "check " + finding.check + " of host " + finding.host;
  text += finding.verdict == Verdict::kUnknown ? " is unknown: " : ": ";
  return text + finding.reason;
}

}  // namespace elastic::gate
