#include "core/succession/early_joins.h"

#include <utility>

namespace elastic::succession {
namespace {

// Before the machine takes the nodes for lost.
constexpr Duration kMargin = std::chrono::milliseconds(10);

}  // namespace

std::optional<Duration> EarlyJoins::begin(const core::RendezvousMachine& machine) {
  awaits_resumes_ = !machine.has_resumed();
  if (!awaits_resumes_) return std::nullopt;
  return machine.takeover_limit() - kMargin;
}

EarlyJoins::Verdict EarlyJoins::judge(const core::RendezvousMachine& machine,
                                      const rdzv::Join& join) {
  if (!awaits_resumes_) return Verdict::kEnter;
  const bool was_decided = machine.record().round > 0 && machine.members_left() > 0;
  if (machine.has_node(join.node.id) || join.node.highest_round > 0) {
    awaits_resumes_ = false;
    return Verdict::kEnter;
  }
  if (!was_decided || is_over_) {
    awaits_resumes_ = false;
    return Verdict::kBeginAnew;
  }
  const bool is_new = joins_.insert_or_assign(join.node.id, join).second;
  return is_new ? Verdict::kWait : Verdict::kKnown;
}

EarlyJoins::Verdict EarlyJoins::judge(const core::RendezvousMachine& machine,
                                      const rdzv::Resume& resume) {
  if (!resume.last) return judge(machine, rdzv::Join{resume.node, resume.settings});
  awaits_resumes_ = false;
  return Verdict::kEnter;
}

std::optional<JobSettings> EarlyJoins::time_out() {
  is_over_ = true;
  if (!awaits_resumes_ || joins_.empty()) return std::nullopt;
  awaits_resumes_ = false;
  return joins_.begin()->second.settings;
}

std::vector<rdzv::Join> EarlyJoins::take() {
  std::vector<rdzv::Join> all;
  if (awaits_resumes_) return all;
  for (auto& [id, join] : std::exchange(joins_, {})) all.push_back(std::move(join));
  return all;
}

}  // namespace elastic::succession
