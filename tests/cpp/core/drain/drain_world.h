#pragma once

// A job of real machines of the coordinator and of the nodes, with workers that race with the
// tentative word. A derived class is the schedule: it calls one access or one delivery at a time.

#include <algorithm>
#include <chrono>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "core/base/random.h"
#include "core/drain/drain_machine.h"
#include "core/drain/drain_member.h"

namespace elastic::core::drain_sim {

using drain::kNoStep;
using drain::Order;
using drain::Reply;

// A worker in single accesses of its page: it stores its step, then reads the tentative word.
struct Rank {
  std::int64_t step = kNoStep;  // in the page
  std::int64_t tentative = kNoStep;
  std::int64_t committed = kNoStep;
  std::int64_t stopped_at = kNoStep;
  std::int64_t waits_at = kNoStep;
  bool takes_part = false;
  bool has_stored = false;  // the tentative word is read next
  bool has_exited = false;
  bool is_silent = false;      // reports nothing
  std::int64_t last_step = 0;  // then it finishes
};

struct SimNode {
  NodeId id;
  std::vector<Rank> ranks;
  DrainMember member;
  // The guardian.
  std::deque<drain::StopStepRequest> requests;
  std::deque<drain::StopStepEvent> events;
  std::optional<drain::StopStepRequest> tentative;  // written, and not checked yet
  std::uint64_t proposal = 0;
  bool is_committed = false;
  bool is_reached = false;
  bool is_ended = false;
  std::int64_t awaited = kNoStep;            // reported when every rank waits at it
  std::optional<std::int64_t> left_at = {};  // the step at which the node has left
  // The session.
  std::deque<Order> orders;
  std::deque<Reply> replies;
  bool is_connected = true;
};

// A round of this number with `ranks` of the node's own, the first of which is `first_rank`.
inline node_event::RoundBegan round_began(std::uint64_t number, std::size_t ranks,
                                          std::int32_t first_rank) {
  auto round = std::make_shared<RoundInfo>();
  round->round = number;
  round->workers.resize(ranks);
  for (WorkerAssignment& worker : round->workers) worker.rank = first_rank++;
  return {std::move(round)};
}

// What the member does first about an event.
inline DrainMember::Answer answer_of(DrainMember* member, const DrainMember::Event& event) {
  DrainMember::Out out;
  member->step(event, {}, &out);
  return out.empty() ? DrainMember::Answer() : out.front();
}

class World {
 protected:
  void add_nodes(std::size_t count) {
    nodes_.resize(count);
    for (std::size_t i = 0; i < count; ++i) nodes_[i].id = {7, i};
  }
  // The nodes have their ranks already.
  void begin_round(std::int64_t first_step) {
    ++round_;
    begin_ = first_step;
    std::int32_t first_rank = 0;
    for (SimNode& node : nodes_) first_rank = begin_member(node, round_, first_rank);
    for (SimNode& node : nodes_) began(node);
  }

  void began(SimNode& node, Duration resume_limit = {}) {
    feed(round_event::Began{node.id, round_, "", resume_limit, static_cast<int>(nodes_.size())});
  }

  // One access of a worker. may_lead: it may be more than one step ahead of another one.
  void advance(Rank& rank, bool may_lead) {
    if (rank.has_exited || rank.is_silent) return;
    if (!rank.has_stored) {
      if (rank.step >= rank.last_step) {
        rank.has_exited = true;
        return;
      }
      const std::int64_t next = rank.step == kNoStep ? begin_ : rank.step + 1;
      if (!may_lead && next > slowest() + 1) return;
      rank.step = next;
      rank.has_stored = true;
      return;
    }
    if (rank.tentative == kNoStep || rank.step < rank.tentative) {
      rank.has_stored = false;
      return;
    }
    if (rank.committed != kNoStep && rank.step >= rank.committed) {
      if (rank.stopped_at == kNoStep) {
        rank.stopped_at = rank.step;
      } else {
        rank.has_exited = true;  // the state is saved
      }
    } else {
      rank.waits_at = rank.step;
    }
  }

  std::int64_t slowest() const {
    std::int64_t step = INT64_MAX;
    for (const SimNode& node : nodes_) {
      for (const Rank& rank : node.ranks) {
        if (!rank.is_silent && !rank.has_exited) {
          step = std::min(step, std::max(rank.step, begin_ - 1));
        }
      }
    }
    return step;
  }

  // One access of the guardian: as guardian/stop_steps.cc, but the write of the tentative words and
  // the check of the steps are two turns.
  void guard(SimNode& node) {
    if (node.tentative) {
      drain::StopStepEvent event = steps_of(node);
      event.kind = Reply::Kind::kAccepted;
      for (const Rank& rank : node.ranks) {
        if (rank.takes_part && !rank.has_exited && rank.step >= node.tentative->step) {
          event.kind = Reply::Kind::kRefused;
        }
      }
      const bool is_accepted = event.kind == Reply::Kind::kAccepted;
      if (is_accepted && node.tentative->reports_waiting) node.awaited = node.tentative->step;
      node.events.push_back(event);
      node.tentative.reset();
      return;
    }
    if (!node.requests.empty()) {
      const drain::StopStepRequest request = node.requests.front();
      node.requests.pop_front();
      node.proposal = request.proposal;
      switch (request.kind) {
        case Order::Kind::kAsk: node.events.push_back(steps_of(node)); return;
        case Order::Kind::kCommit:
          for (Rank& rank : node.ranks) {
            if (rank.takes_part) rank.committed = rank.tentative;
          }
          node.is_committed = true;
          node.awaited = kNoStep;
          node.is_reached = node.is_ended = false;
          return;
        default: break;
      }
      node.is_committed = false;
      const bool is_tentative = request.kind == Order::Kind::kTentative;
      node.awaited = kNoStep;
      for (Rank& rank : node.ranks) {
        rank.takes_part = is_tentative && !rank.has_exited && rank.step >= 0;
        rank.tentative = rank.takes_part ? request.step : kNoStep;
        rank.committed = kNoStep;
      }
      if (is_tentative) node.tentative = request;
      return;
    }
    observe_stops(node);
  }

  static drain::StopStepEvent steps_of(const SimNode& node) {
    drain::StopStepEvent event;
    event.proposal = node.proposal;
    for (std::size_t i = 0; i < node.ranks.size(); ++i) {
      const Rank& rank = node.ranks[i];
      if (rank.has_exited || rank.step < 0) continue;
      event.oldest = event.reporting.empty() ? rank.step : std::min(event.oldest, rank.step);
      event.newest = std::max(event.newest, rank.step);
      event.reporting.push_back(static_cast<std::uint32_t>(i));
    }
    return event;
  }

  void observe_stops(SimNode& node) {
    for (std::size_t i = 0; i < node.ranks.size(); ++i) {
      if (node.ranks[i].has_exited) end_worker(node, i);
    }
    drain::StopStepEvent event;
    event.proposal = node.proposal;
    if (node.awaited != kNoStep) {
      for (const Rank& rank : node.ranks) {
        if (rank.takes_part && !rank.has_exited && rank.waits_at < node.awaited) return;
      }
      node.awaited = kNoStep;
      event.kind = Reply::Kind::kWaiting;
      node.events.push_back(event);
      return;
    }
    if (!node.is_committed || node.is_ended) return;
    bool has_ended = true;
    for (const Rank& rank : node.ranks) {
      if (!rank.takes_part) continue;
      if (!rank.has_exited && rank.stopped_at == kNoStep) return;
      has_ended = has_ended && rank.has_exited;
      if (rank.stopped_at == kNoStep) continue;
      event.first_stop =
          event.stopped == 0 ? rank.stopped_at : std::min(event.first_stop, rank.stopped_at);
      event.last_stop = std::max(event.last_stop, rank.stopped_at);
      ++event.stopped;
    }
    if (node.is_reached && !has_ended) return;
    node.is_reached = true;
    node.is_ended = has_ended;
    event.kind = has_ended ? Reply::Kind::kEnded : Reply::Kind::kReached;
    node.events.push_back(event);
  }

  void deliver_order(SimNode& node) {
    if (node.orders.empty()) return;
    const Order order = node.orders.front();
    node.orders.pop_front();
    answer(node, answer_of(&node.member, order));
  }
  void deliver_event(SimNode& node) {
    if (node.events.empty()) return;
    const drain::StopStepEvent event = node.events.front();
    node.events.pop_front();
    answer(node, answer_of(&node.member, event));
  }
  // With a rank for each of the node's. Returns the first one of the next node.
  static std::int32_t begin_member(SimNode& node, std::uint64_t number, std::int32_t first_rank) {
    (void)answer_of(&node.member, round_began(number, node.ranks.size(), first_rank));
    return first_rank + static_cast<std::int32_t>(node.ranks.size());
  }
  static void end_worker(SimNode& node, std::size_t local_rank) {
    (void)answer_of(&node.member, node_event::WorkerEnded{static_cast<int>(local_rank), {}});
  }
  static void answer(SimNode& node, const DrainMember::Answer& answer) {
    if (answer.request) node.requests.push_back(*answer.request);
    if (answer.leaves_at) node.left_at = answer.leaves_at;
    if (!answer.reply || !node.is_connected) return;
    node.replies.push_back(*answer.reply);
    const bool is_any_ended = std::any_of(node.ranks.begin(), node.ranks.end(),
                                          [](const Rank& rank) { return rank.has_exited; });
    node.replies.back().can_continue =
        !is_any_ended &&
        (answer.reply->kind == Reply::Kind::kSteps || answer.reply->kind == Reply::Kind::kWaiting);
  }
  void deliver_reply(SimNode& node) {
    if (node.replies.empty()) return;
    const Reply reply = node.replies.front();
    node.replies.pop_front();
    feed(drain_event::Replied{node.id, reply});
  }

  void report(SimNode& node) {
    hang::NodeProgress progress;
    progress.round = round_;
    const drain::StopStepEvent steps = steps_of(node);
    progress.reporting = static_cast<std::int32_t>(steps.reporting.size());
    progress.newest = steps.newest;
    progress.oldest = steps.oldest;
    if (node.is_connected) feed(round_event::Progressed{node.id, progress});
  }

  void departure(Duration left, const std::vector<NodeId>& nodes, bool stops_job) {
    feed(drain_event::Noticed{{left, "the test", drain::Departure{nodes, stops_job}}});
  }
  void notice(Duration left, const std::string& reason) {
    feed(drain_event::Noticed{{left, reason}});
  }

  static void break_session(SimNode& node) {
    node.is_connected = false;
    node.orders.clear();
    node.replies.clear();
  }
  void resume(SimNode& node) {
    node.is_connected = true;
    began(node, std::chrono::seconds(6));
  }
  // The new one knows nothing, and hears each node when it resumes.
  void replace_coordinator() {
    machine_ = {};
    for (SimNode& node : nodes_) break_session(node);
  }

  void feed(const DrainEvent& event) {
    std::vector<DrainAction> actions;
    machine_.step(event, now_, &actions);
    for (const DrainAction& action : actions) {
      if (const auto* sent = std::get_if<drain_action::Send>(&action)) {
        if (sent->order.kind == Order::Kind::kRelease) released_at_ = sent->order.step;
        for (SimNode& node : nodes_) {
          if (node.id == sent->to && node.is_connected) node.orders.push_back(sent->order);
        }
      } else if (const auto* closed = std::get_if<drain_action::Close>(&action)) {
        result_ = closed->result;
      } else if (std::holds_alternative<drain_action::Grow>(action)) {
        grows_ = true;
      }
    }
  }

  std::vector<std::int64_t> stops() const {
    std::vector<std::int64_t> found;
    for (const SimNode& node : nodes_) {
      for (const Rank& rank : node.ranks) {
        if (rank.stopped_at != kNoStep) found.push_back(rank.stopped_at);
      }
    }
    std::sort(found.begin(), found.end());
    found.erase(std::unique(found.begin(), found.end()), found.end());
    return found;
  }
  std::string check() const {
    const auto found = stops();
    if (found.size() < 2) return "";
    return "ranks stopped at steps " + std::to_string(found.front()) + " and " +
           std::to_string(found.back());
  }
  std::string describe() const {
    std::string text = "the job does not end: phase " +
                       std::to_string(static_cast<int>(machine_.phase())) + ", round " +
                       std::to_string(round_);
    for (const SimNode& node : nodes_) {
      text += node.is_connected ? "; node" : "; node without session";
      for (const Rank& rank : node.ranks) {
        text += " [step " + std::to_string(rank.step) + " of " + std::to_string(rank.last_step) +
                ", tentative " + std::to_string(rank.tentative) + ", stopped at " +
                std::to_string(rank.stopped_at) + (rank.has_exited ? ", exited" : "") +
                (rank.is_silent ? ", silent]" : "]");
      }
    }
    return text;
  }
  bool all_exited() const {
    for (const SimNode& node : nodes_) {
      for (const Rank& rank : node.ranks) {
        if (!rank.has_exited && !rank.is_silent) return false;
      }
    }
    return true;
  }

  Instant now_{std::chrono::seconds(1000)};
  DrainMachine machine_;
  std::vector<SimNode> nodes_;
  std::uint64_t round_ = 0;
  std::int64_t begin_ = 0;
  std::optional<JobResult> result_;
  std::optional<std::int64_t> released_at_;  // a node was told to leave at this step
  bool grows_ = false;                       // the round is to end for nodes that join

  bool all_wait(std::int64_t step) const {
    for (const SimNode& node : nodes_) {
      for (const Rank& rank : node.ranks) {
        const bool is_waiting = rank.has_stored && rank.step == step && rank.tentative == step;
        if (!is_waiting && !rank.has_exited) return false;
      }
    }
    return true;
  }
  // Every rank goes on, and no order is under way.
  bool is_free() const {
    for (const SimNode& node : nodes_) {
      if (!node.orders.empty() || !node.requests.empty() || !node.is_connected) return false;
      for (const Rank& rank : node.ranks) {
        if (rank.tentative != kNoStep && !rank.has_exited) return false;
      }
    }
    return true;
  }
};

inline constexpr int kFaultyTurns = 1200;
inline constexpr int kScheduleTurnsMax = 60'000;

// A seeded schedule. Faults end after kFaultyTurns.
class RandomSchedule : protected World {
 protected:
  explicit RandomSchedule(std::uint64_t seed) : rng_(seed) {}
  virtual ~RandomSchedule() = default;

  virtual void give_notice() = 0;
  // The session of the node has been resumed, after a notice was given.
  virtual void repeat_notice(const SimNode& node) = 0;
  virtual bool may_fail() const { return true; }
  virtual void fail_round(SimNode& node) = 0;

  void one_turn(int turn) {
    now_ += std::chrono::milliseconds(below(3));
    SimNode& node = nodes_[below(nodes_.size())];
    switch (below(is_faulty_ ? 14 : 11)) {
      case 0:
      case 1:
      case 2:
      case 3: {
        Rank& rank = node.ranks[below(node.ranks.size())];
        advance(rank, below(4) == 0);
        break;
      }
      case 4:
      case 5: guard(node); break;
      case 6: deliver_order(node); break;
      case 7: deliver_reply(node); break;
      case 8: deliver_event(node); break;
      case 9:
        if (const auto next = machine_.next_deadline(); next && now_ >= *next) {
          feed(PartTick{});
        }
        break;
      case 10: report(node); break;
      case 11:
        if (below(10) == 0) break_session(node);
        break;
      case 12:
        if (below(has_notice_ ? 6 : 60) == 0) replace_coordinator();
        break;
      case 13:
        if (below(150) == 0 && may_fail()) fail_round(node);
        break;
    }
    if (!has_notice_ && (below(100) == 0 || turn == kFaultyTurns)) {
      has_notice_ = true;
      give_notice();
    }
    if (!node.is_connected && below(5) == 0) {
      resume(node);
      if (has_notice_) repeat_notice(node);
    }
    // The ranks of a synchronous job wait for each other; time passes meanwhile.
    if (!is_faulty_ && below(50) == 0) now_ += std::chrono::milliseconds(100);
  }

  // All nodes with new ranks; the first step of their round.
  std::int64_t renew_nodes(std::uint64_t ranks_max, std::uint64_t steps_max = 2000) {
    const auto begin = static_cast<std::int64_t>(below(50));
    const auto last = begin + 1 + static_cast<std::int64_t>(below(steps_max));
    for (SimNode& node : nodes_) {
      const NodeId id = node.id;
      node = {};
      node.id = id;
      node.ranks.resize(1 + below(ranks_max));
      for (Rank& rank : node.ranks) rank.last_step = last;
    }
    return begin;
  }

  std::uint64_t below(std::uint64_t limit) { return rng_.next() % limit; }

  Rng rng_;
  bool has_notice_ = false;
  bool is_faulty_ = true;
};

}  // namespace elastic::core::drain_sim
