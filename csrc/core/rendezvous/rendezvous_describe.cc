// The sentences that nodes receive, that are logged, and that describe() returns: the job's state
// and what it waits for. Nothing is decided here.

#include "core/base/text.h"
#include "core/rendezvous/rendezvous_machine.h"
#include "elastic/observer.h"

namespace elastic {

const char* to_string(rdzv::RestartCause cause) {
  switch (cause) {
    case rdzv::RestartCause::kWorkerFailed: return "worker_failed";
    case rdzv::RestartCause::kMemberLost: return "node_lost";
    case rdzv::RestartCause::kMemberLeft: return "node_left";
    case rdzv::RestartCause::kGrowth: return "nodes_joined";
    case rdzv::RestartCause::kRejoin: break;
  }
  return "rejoin";
}

namespace core {
namespace {

constexpr int kNodesShown = 4;

std::string nodes_text(int count) { return count_text(count, "node"); }

}  // namespace

std::vector<NodeStatus> RendezvousMachine::nodes(Instant now) const {
  std::vector<NodeStatus> all;
  all.reserve(nodes_.size());
  for (const auto& [id, node] : nodes_) {
    all.push_back({id, node.info.name, host_of(node.info), node.info.address, node.phase, node.rank,
                   node.suspect, liveness_.silence(id, now), node.info.hosts_coordinator});
  }
  return all;
}

std::string RendezvousMachine::names_of(NodePhase phase, int count) const {
  std::string names;
  int shown = 0;
  for (const auto& [id, node] : nodes_) {
    if (node.phase != phase) continue;
    if (shown == kNodesShown) break;
    names += (shown++ == 0 ? "" : ", ") + node.info.name;
  }
  if (count > shown) names += " and " + std::to_string(count - shown) + " more";
  return shown == 0 ? "" : " (" + names + ")";
}

std::string RendezvousMachine::describe(Instant now) const {
  const Description description = describe_state(now, true);
  return with_remaining(description.message(), description.remaining(now));
}

RendezvousMachine::Description RendezvousMachine::describe_state(Instant now,
                                                                 bool with_names) const {
  switch (phase()) {
    case RendezvousPhase::kClosed: return {"closed: " + result_->message};
    case RendezvousPhase::kRunning: return describe_running();
    case RendezvousPhase::kForming: {
      Description forming = describe_forming(now, with_names);
      if (!refused_.empty()) forming.text += "; refused " + refused_;
      const bool is_short = round_.tally.joined < settings_.min_nodes;
      if (is_short && !neighbours_.empty()) forming.text += "; " + neighbours_;
      return forming;
    }
  }
  return {};
}

RendezvousMachine::Description RendezvousMachine::describe_running() const {
  const std::string round = "round " + std::to_string(shown_round(round_.record.round));
  if (round_.missing > 0) {
    return {round + " is being rebuilt after a restart of the coordinator: " +
                std::to_string(round_.record.nodes - round_.missing) + " of " +
                nodes_text(round_.record.nodes) + (round_.record.nodes == 1 ? " has" : " have") +
                " resumed",
            "the others are declared lost", round_.at(Timer::kRebuild)};
  }
  std::string text = round + " runs on " + nodes_text(round_.record.nodes);
  if (round_.tally.done_members > 0) {
    return {text + ": " + std::to_string(round_.tally.done_members) + " done, waiting for " +
            nodes_text(round_.tally.working) + " to finish"};
  }
  if (spare_nodes() > 0) text += ", spares: " + std::to_string(spare_nodes());
  if (round_.is_growth_due) {
    const std::string what =
        may_replace_excluded()
            ? count_text(round_.tally.excluded_members, "node") + " of excluded hosts will leave"
            : count_text(waiting_nodes(), "more node") + " will be admitted";
    return {text + ", " + what + " when the ranks have reached a step"};
  }
  if (!round_.is_armed(Timer::kGrowth)) return {text};
  if (is_flapping()) {
    text += ", joins are delayed, since each of the last " + std::to_string(round_.flaps) +
            " rounds lost a node within " + duration_text(kFlapRoundAge) + " of its start";
  }
  return {text, count_text(waiting_nodes(), "more node") + " will be admitted",
          round_.at(Timer::kGrowth)};
}

RendezvousMachine::Description RendezvousMachine::describe_forming(Instant now,
                                                                   bool with_names) const {
  const auto names = [&](NodePhase phase, int count) {
    return with_names ? names_of(phase, count) : "";
  };
  const std::string last = round_.record.round > 0
                               ? "round " + std::to_string(shown_round(round_.record.round)) +
                                     " has ended (" + round_.end.reason + "): "
                               : "";
  if (round_.tally.working > 0) {
    return {last + "waiting for " + nodes_text(round_.tally.working) +
            (round_.tally.working == 1 ? " to stop its workers" : " to stop their workers") +
            names(NodePhase::kWorking, round_.tally.working)};
  }
  if (round_.missing > 0) {
    return {last + "waiting for " + nodes_text(round_.missing) +
                (round_.missing == 1 ? " that has" : " that have") +
                " not resumed since the coordinator was restarted",
            round_.missing == 1 ? "it is declared lost" : "they are declared lost",
            round_.at(Timer::kRebuild)};
  }
  if (round_.tally.stopped > 0) {
    return {last + "waiting for " + nodes_text(round_.tally.stopped) + " to join again" +
            names(NodePhase::kStopped, round_.tally.stopped)};
  }
  // Almost all nodes have joined here, so that four names are found at once.
  const std::string joined = last + std::to_string(round_.tally.joined) + " of ";
  const std::string who = names_of(NodePhase::kJoined, round_.tally.joined);
  const bool is_range = settings_.min_nodes < settings_.max_nodes;
  if (round_.tally.joined < settings_.min_nodes) {
    const bool is_bad = lacks_node() && !bad_host_.empty();
    const std::string bad = is_bad ? ", and host " + bad_host_ + " is bad" : "";
    const std::string text = joined + (is_range ? "at least " : "") +
                             nodes_text(settings_.min_nodes) + " joined" + who + bad;
    if (!round_.is_armed(Timer::kBelowMinNodes)) return {text};
    return {text, "gives up", round_.at(Timer::kBelowMinNodes)};
  }
  const std::string text =
      joined + (is_range ? "up to " : "") + nodes_text(settings_.max_nodes) + " joined" + who;
  if (round_.tally.joined_suspect > 0) return {text + ", waiting for a closed session to resume"};
  if (is_start_due_) return {text + ", the network between them is being checked"};
  if (round_.is_armed(Timer::kBackoff) && now < round_.at(Timer::kBackoff)) {
    return {last + "workers failed within " + duration_text(kCrashAge) + " in " +
                std::to_string(round_.crashes) + " rounds in a row",
            "the next one starts", round_.at(Timer::kBackoff)};
  }
  const bool is_full = round_.tally.joined >= settings_.max_nodes;
  if (!is_full && round_.is_first && now < round_.at(Timer::kLastCall)) {
    return {text, "last call ends", round_.at(Timer::kLastCall)};
  }
  if (!is_full && round_.is_armed(Timer::kShrink) && now < round_.at(Timer::kShrink)) {
    return {text + ", waiting for a replacement", "continues without one",
            round_.at(Timer::kShrink)};
  }
  if (round_.is_first) {
    return {text + ", and nodes of an earlier coordinator may reconnect", "begins without them",
            round_.at(Timer::kStart)};
  }
  return {text + ", waiting for members of an earlier round to rejoin", "continues without them",
          round_.at(Timer::kStart)};
}

void RendezvousMachine::send_waiting(const Node& node) const {
  Description description = describe_waiting(now_, node);
  // In the first round every node has its own join timeout.
  const bool is_limited = phase() == RendezvousPhase::kForming &&
                          node.phase == NodePhase::kJoined && node.deadline.at != Instant::max();
  if (!description.at && is_limited) {
    description.then = "gives up";
    description.at = node.deadline.at;
  }
  emit(rdzv::Waiting{node.info.id, description.message(), description.remaining(now_)});
}

RendezvousMachine::Description RendezvousMachine::describe_waiting(Instant now,
                                                                   const Node& node) const {
  if (node.is_excluded && node.phase == NodePhase::kJoined) {
    Description last = describe_state(now, false);
    last.text = "this node's host is excluded (" + why_excluded(node.info) +
                "), so it is the last spare; " + last.text;
    return last;
  }
  if (phase() != RendezvousPhase::kRunning || node.phase != NodePhase::kJoined ||
      round_.missing > 0 || may_grow()) {
    return describe_state(now, false);
  }
  const std::string round = "round " + std::to_string(shown_round(round_.record.round));
  if (holds_growth_) {
    return {"the job is being stopped at an agreed step, so " + round +
            " is not restarted for this node"};
  }
  if (round_.tally.done > 0 || round_.finishers_departed > 0) {
    return {round + " has finished nodes, so it is not restarted for this one, which is a spare"};
  }
  if (round_.size() >= settings_.max_nodes) {
    return {round + " has " + nodes_text(settings_.max_nodes) +
            ", which is the maximum: this node is a spare"};
  }
  if (round_.tally.awaited > 0) {
    return {round + " grows when all of its nodes have resumed after a restart of the coordinator"};
  }
  return {round + " is not restarted for this node, a spare: --max-membership-changes=" +
          std::to_string(settings_.max_membership_changes) + " is reached"};
}

}  // namespace core
}  // namespace elastic
