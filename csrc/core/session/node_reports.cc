#include "core/session/node_reports.h"

#include <algorithm>
#include <utility>

namespace elastic::core {

void KeptReports::keep(const NodeReport& report, Delivery delivery, Instant now) {
  has_held_ = has_held_ || delivery == Delivery::kHeld;
  std::visit([&](const auto& one) { this->keep_one(one, delivery, now); }, report);
}

template <typename Reply>
void KeptReports::keep_one(const Reply& reply, Delivery delivery, Instant) {
  if (delivery != Delivery::kHeld) return;
  if (replies_.size() == kRepliesHeld) replies_.erase(replies_.begin());
  replies_.push_back(reply);
}

void KeptReports::keep_one(const hang::NodeProgress& progress, Delivery delivery, Instant now) {
  progress_ = {progress, now};
  is_progress_known_ = delivery == Delivery::kSent;
}

void KeptReports::keep_one(const hang::RankFinished& finished, Delivery, Instant now) {
  finished_ = {finished, now};
}

void KeptReports::keep_one(const snapshot::CopyReport& copies, Delivery, Instant) {
  copies_ = copies;
}

void KeptReports::keep_one(const drain::Notice& notice, Delivery, Instant now) {
  notice_ = {notice, now};
  is_unanswered_ = true;
}

void KeptReports::keep_one(const gate::Finding& finding, Delivery delivery, Instant now) {
  if (delivery == Delivery::kSent) return;
  if (findings_.size() == kFindingsKept) findings_.erase(findings_.begin());
  findings_.push_back({finding, now});
}

void KeptReports::note(const session::AboutWorkers& message, Instant now) {
  const auto* const order = std::get_if<drain::Order>(&message);
  if (order == nullptr) return;
  const bool is_growth = order->notice.departure && order->notice.departure->nodes.empty();
  if (is_growth && order->kind == drain::Order::Kind::kWithdraw) {
    joining_.reset();
  } else if (is_growth) {
    joining_ = {order->notice, now};
  } else {
    notice_ = {order->notice, now};
    is_unanswered_ = false;
  }
}

drain::Notice KeptReports::aged(const Kept<drain::Notice>& kept, Instant now) {
  drain::Notice notice = kept.report;
  notice.left = std::max(notice.left - (now - kept.at), Duration::zero());
  return notice;
}

void KeptReports::coordinator_replied(std::uint64_t incarnation) {
  if (std::exchange(incarnation_, incarnation) != incarnation) is_progress_known_ = false;
}

std::vector<NodeReport> KeptReports::after_silence(Instant now) {
  if (!std::exchange(has_held_, false)) return {};
  std::vector<NodeReport> messages = std::exchange(replies_, {});
  for (NodeReport& one : after_resume(now)) messages.push_back(std::move(one));
  if (auto progress = after_resumed(now)) messages.emplace_back(*std::move(progress));
  for (gate::Finding& one : take_findings(now)) messages.emplace_back(std::move(one));
  return messages;
}

void KeptReports::forget_held() {
  has_held_ = false;
  replies_.clear();
}

std::vector<NodeReport> KeptReports::after_resume(Instant now) const {
  std::vector<NodeReport> messages;
  if (finished_) {
    hang::RankFinished finished = finished_->report;
    finished.age += now - finished_->at;
    messages.push_back(finished);
  }
  if (copies_) messages.push_back(*copies_);
  for (const auto* const kept : {&notice_, &joining_}) {
    if (*kept) messages.push_back(aged(**kept, now));
  }
  return messages;
}

std::vector<gate::Finding> KeptReports::take_findings(Instant now) {
  std::vector<gate::Finding> findings;
  for (Kept<gate::Finding>& kept : findings_) {
    kept.report.age += now - kept.at;
    findings.push_back(std::move(kept.report));
  }
  findings_.clear();
  return findings;
}

std::optional<drain::Notice> KeptReports::after_join(Instant now) const {
  if (!notice_ || !is_unanswered_) return std::nullopt;
  drain::Notice notice = aged(*notice_, now);
  if (notice.left == Duration::zero()) return std::nullopt;  // the node stops by itself
  return notice;
}

// The same progress twice would be new progress: the two messages need different times to arrive.
std::optional<hang::NodeProgress> KeptReports::after_resumed(Instant now) {
  if (!progress_ || std::exchange(is_progress_known_, true)) return std::nullopt;
  hang::NodeProgress progress = progress_->report;
  progress.idle += now - progress_->at;
  progress.slowest_idle += now - progress_->at;
  progress.waited += now - progress_->at;
  return progress;
}

}  // namespace elastic::core
