// Sentences: what the job does and what it waits for. They are told to nodes, written into logs and
// answered by describe(); nothing is decided here.

#include <algorithm>
#include <cstdio>

#include "core/base/duration_text.h"
#include "core/rendezvous/rendezvous_machine.h"

namespace elastic {

std::string to_string(const NodeId& id) {
  char text[33];
  std::snprintf(text, sizeof text, "%016llx%016llx", static_cast<unsigned long long>(id.high),
                static_cast<unsigned long long>(id.low));
  return text;
}

namespace core {
namespace {

constexpr std::size_t kNamesShown = 4;

std::string nodes_text(int count) {
  return std::to_string(count) + (count == 1 ? " node" : " nodes");
}

}  // namespace

std::vector<NodeStatus> RendezvousMachine::nodes(Instant now) const {
  std::vector<NodeStatus> all;
  all.reserve(nodes_.size());
  for (const auto& [id, node] : nodes_) {
    all.push_back(
        {id, node.info.name, node.phase, node.rank, node.suspect, liveness_.silence(id, now)});
  }
  return all;
}

std::string RendezvousMachine::names_of(NodePhase phase) const {
  std::string names;
  std::size_t shown = 0;
  std::size_t more = 0;
  for (const auto& [id, node] : nodes_) {
    if (node.phase != phase) continue;
    if (shown == kNamesShown) {
      ++more;
      continue;
    }
    names += (shown++ == 0 ? "" : ", ") + node.info.name;
  }
  if (more > 0) names += " and " + std::to_string(more) + " more";
  return names.empty() ? names : " (" + names + ")";
}

std::string RendezvousMachine::describe_state(Instant now, bool with_names) const {
  switch (phase_) {
    case RendezvousPhase::kClosed: return "closed: " + result_->message;
    case RendezvousPhase::kRunning: return describe_running(now);
    case RendezvousPhase::kForming: return describe_forming(now, with_names);
  }
  return "";
}

std::string RendezvousMachine::describe_running(Instant now) const {
  const std::string round = "round " + std::to_string(record_.round);
  const auto left = [&](Timer timer) {
    return duration_text(std::max(at(timer) - now, Duration::zero()));
  };
  if (missing_ > 0) {
    return round + " is being rebuilt after a restart of the coordinator: " +
           std::to_string(record_.nodes - missing_) + " of " + nodes_text(record_.nodes) +
           " have resumed, the others have " + left(Timer::kRebuild) + " more";
  }
  std::string text = round + " runs on " + nodes_text(record_.nodes);
  if (tally_.done_members > 0) {
    return text + ": " + std::to_string(tally_.done_members) + " done, waiting for " +
           nodes_text(tally_.working) + " to finish";
  }
  if (is_armed(Timer::kGrowth)) {
    text +=
        "; " + nodes_text(waiting_nodes()) + " more will be admitted in " + left(Timer::kGrowth);
  }
  if (spare_nodes() > 0) text += "; spares: " + std::to_string(spare_nodes());
  return text;
}

std::string RendezvousMachine::describe_forming(Instant now, bool with_names) const {
  const auto left = [&](Timer timer) {
    return duration_text(std::max(at(timer) - now, Duration::zero()));
  };
  const auto names = [&](NodePhase phase) { return with_names ? names_of(phase) : ""; };
  const std::string next = record_.round > 0 ? "round " + std::to_string(record_.round) +
                                                   " has ended (" + end_.reason + ")"
                                             : "the first round is being formed";
  if (tally_.working > 0) {
    return next + ": waiting for " + nodes_text(tally_.working) + " to stop their workers" +
           names(NodePhase::kWorking);
  }
  if (missing_ > 0) {
    return next + ": waiting " + left(Timer::kRebuild) + " for " + nodes_text(missing_) +
           " that have not resumed since the coordinator was restarted";
  }
  if (tally_.stopped > 0) {
    return next + ": waiting for " + nodes_text(tally_.stopped) + " to join again" +
           names(NodePhase::kStopped);
  }
  const std::string joined = next + ": " + nodes_text(tally_.joined) + " joined";
  if (tally_.joined < settings_.min_nodes) {
    std::string text = joined + ", waiting for " +
                       std::to_string(settings_.min_nodes - tally_.joined) + " more of at least " +
                       std::to_string(settings_.min_nodes);
    if (is_armed(Timer::kBelowMinNodes)) text += " for " + left(Timer::kBelowMinNodes);
    return text;
  }
  if (tally_.joined_suspect > 0) return joined + ", waiting for a closed session to resume";
  if (is_armed(Timer::kBackoff) && now < at(Timer::kBackoff)) {
    return joined + ", workers failed within " + duration_text(kCrashAge) + " in " +
           std::to_string(crashes_) + " rounds in a row: the next one starts in " +
           left(Timer::kBackoff);
  }
  const bool is_full = tally_.joined >= settings_.max_nodes;
  if (!is_full && is_first_ && now < at(Timer::kLastCall)) {
    return joined + ", room for " + std::to_string(settings_.max_nodes - tally_.joined) +
           " more: last call, " + left(Timer::kLastCall) + " left";
  }
  if (!is_full && is_armed(Timer::kShrink) && now < at(Timer::kShrink)) {
    return joined + ", waiting " + left(Timer::kShrink) + " for a replacement";
  }
  return joined + ", waiting " + left(Timer::kStartHold) +
         " for members of an earlier round to come back";
}

std::string RendezvousMachine::describe_waiting(Instant now, const Node& node) const {
  if (phase_ != RendezvousPhase::kRunning || node.phase != NodePhase::kJoined || missing_ > 0 ||
      may_grow()) {
    return describe_state(now, false);
  }
  const std::string round = "round " + std::to_string(record_.round);
  if (tally_.done > 0 || finishers_departed_ > 0) {
    return round + " has finished nodes, so it is not restarted for this one, which is a spare";
  }
  if (static_cast<int>(members_.size()) >= settings_.max_nodes) {
    return "all " + std::to_string(settings_.max_nodes) + " places of " + round +
           " are taken: this node is a spare";
  }
  return round + " is not restarted for this node, a spare: the membership has changed " +
         std::to_string(membership_changes_) + " times, which is all that is allowed";
}

}  // namespace core
}  // namespace elastic
