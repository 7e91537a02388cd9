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
  switch (phase()) {
    case RendezvousPhase::kClosed: return "closed: " + result_->message;
    case RendezvousPhase::kRunning: return describe_running(now);
    case RendezvousPhase::kForming: return describe_forming(now, with_names);
  }
  return "";
}

std::string RendezvousMachine::describe_running(Instant now) const {
  const std::string round = "round " + std::to_string(round_.record.round);
  const auto left = [&](Timer timer) {
    return duration_text(std::max(round_.at(timer) - now, Duration::zero()));
  };
  if (round_.missing > 0) {
    return round + " is being rebuilt after a restart of the coordinator: " +
           std::to_string(round_.record.nodes - round_.missing) + " of " +
           nodes_text(round_.record.nodes) + " have resumed, the others have " +
           left(Timer::kRebuild) + " more";
  }
  std::string text = round + " runs on " + nodes_text(round_.record.nodes);
  if (round_.tally.done_members > 0) {
    return text + ": " + std::to_string(round_.tally.done_members) + " done, waiting for " +
           nodes_text(round_.tally.working) + " to finish";
  }
  if (round_.is_armed(Timer::kGrowth)) {
    text +=
        "; " + nodes_text(waiting_nodes()) + " more will be admitted in " + left(Timer::kGrowth);
  }
  if (spare_nodes() > 0) text += "; spares: " + std::to_string(spare_nodes());
  return text;
}

std::string RendezvousMachine::describe_forming(Instant now, bool with_names) const {
  const auto left = [&](Timer timer) {
    return duration_text(std::max(round_.at(timer) - now, Duration::zero()));
  };
  const auto names = [&](NodePhase phase) { return with_names ? names_of(phase) : ""; };
  const std::string next = round_.record.round > 0
                               ? "round " + std::to_string(round_.record.round) + " has ended (" +
                                     round_.end.reason + ")"
                               : "the first round is being formed";
  if (round_.tally.working > 0) {
    return next + ": waiting for " + nodes_text(round_.tally.working) + " to stop their workers" +
           names(NodePhase::kWorking);
  }
  if (round_.missing > 0) {
    return next + ": waiting " + left(Timer::kRebuild) + " for " + nodes_text(round_.missing) +
           " that have not resumed since the coordinator was restarted";
  }
  if (round_.tally.stopped > 0) {
    return next + ": waiting for " + nodes_text(round_.tally.stopped) + " to join again" +
           names(NodePhase::kStopped);
  }
  const std::string joined = next + ": " + nodes_text(round_.tally.joined) + " joined";
  if (round_.tally.joined < settings_.min_nodes) {
    std::string text = joined + ", waiting for " +
                       std::to_string(settings_.min_nodes - round_.tally.joined) +
                       " more of at least " + std::to_string(settings_.min_nodes);
    if (round_.is_armed(Timer::kBelowMinNodes)) text += " for " + left(Timer::kBelowMinNodes);
    return text;
  }
  if (round_.tally.joined_suspect > 0) return joined + ", waiting for a closed session to resume";
  if (round_.is_armed(Timer::kBackoff) && now < round_.at(Timer::kBackoff)) {
    return joined + ", workers failed within " + duration_text(kCrashAge) + " in " +
           std::to_string(round_.crashes) + " rounds in a row: the next one starts in " +
           left(Timer::kBackoff);
  }
  const bool is_full = round_.tally.joined >= settings_.max_nodes;
  if (!is_full && round_.is_first && now < round_.at(Timer::kLastCall)) {
    return joined + ", room for " + std::to_string(settings_.max_nodes - round_.tally.joined) +
           " more: last call, " + left(Timer::kLastCall) + " left";
  }
  if (!is_full && round_.is_armed(Timer::kShrink) && now < round_.at(Timer::kShrink)) {
    return joined + ", waiting " + left(Timer::kShrink) + " for a replacement";
  }
  return joined + ", waiting " + left(Timer::kStartHold) +
         " for members of an earlier round to come back";
}

std::string RendezvousMachine::describe_waiting(Instant now, const Node& node) const {
  if (!round_.is_running || node.phase != NodePhase::kJoined || round_.missing > 0 || may_grow()) {
    return describe_state(now, false);
  }
  const std::string round = "round " + std::to_string(round_.record.round);
  if (round_.tally.done > 0 || round_.finishers_departed > 0) {
    return round + " has finished nodes, so it is not restarted for this one, which is a spare";
  }
  if (round_.size() >= settings_.max_nodes) {
    return "all " + std::to_string(settings_.max_nodes) + " places of " + round +
           " are taken: this node is a spare";
  }
  return round + " is not restarted for this node, a spare: the membership has changed " +
         std::to_string(membership_changes_) + " times, which is all that is allowed";
}

}  // namespace core
}  // namespace elastic
