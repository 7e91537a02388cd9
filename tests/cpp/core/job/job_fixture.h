#pragma once

// For tests of a job as one machine: its nodes, and what it did in the last step.

#include <gtest/gtest.h>

#include <chrono>
#include <string>
#include <variant>
#include <vector>

#include "core/job/job.h"
#include "support/node_info.h"

namespace elastic::core {

using std::chrono::milliseconds;
using std::chrono::seconds;

class JobTest : public ::testing::Test {
 protected:
  static NodeId node(int index) { return {1, static_cast<std::uint64_t>(index)}; }
  static JobSettings two_nodes() {
    JobSettings settings;
    settings.min_nodes = settings.max_nodes = 2;
    settings.restart_backoff = Duration::zero();
    return settings;
  }

  std::vector<JobAction> step(const JobEvent& event) {
    std::vector<JobAction> actions;
    job_.step(event, now_, &actions);
    return actions;
  }
  std::vector<JobAction> join(int index, std::uint64_t highest_round = 0) {
    rdzv::Join join{support::node_info(static_cast<std::uint64_t>(index)), settings_};
    join.node.name += "_7";
    join.node.highest_round = highest_round;
    return step(join);
  }
  std::vector<JobAction> begin_round() {
    (void)join(0);
    return join(1);
  }
  std::vector<JobAction> progress(int index, std::int64_t at, Duration limit = {}) {
    hang::NodeProgress progress;
    progress.round = job_.rendezvous().record().round;
    progress.reporting = 1;
    progress.newest = progress.oldest = at;
    progress.slowest_rank = index;
    progress.limit = limit;
    return step(job_event::Progressed{node(index), progress});
  }
  std::vector<JobAction> reply(int index, const drain::Order& order, drain::Reply::Kind kind,
                               bool can_continue = false) {
    drain::Reply reply{.kind = kind, .round = order.round, .proposal = order.proposal};
    reply.reporting = 1;
    reply.newest = reply.oldest = 10;
    reply.can_continue = can_continue;
    if (kind == drain::Reply::Kind::kEnded) {
      reply.stopped = 1;
      reply.first_stop = reply.last_stop = order.step;
    }
    return step(job_event::StopReplied{node(index), reply});
  }
  std::vector<JobAction> both_reply(const drain::Order& order, drain::Reply::Kind kind) {
    (void)reply(0, order, kind);
    return reply(1, order, kind);
  }
  std::vector<JobAction> both_can_continue(const drain::Order& order,
                                           drain::Reply::Kind kind = drain::Reply::Kind::kSteps) {
    (void)reply(0, order, kind, true);
    return reply(1, order, kind, true);
  }
  // Both nodes end at the agreed step.
  std::vector<JobAction> stop_at_a_step() {
    const auto asked = step(job_event::Noticed{node(0), {seconds(100), "SIGTERM on node0"}});
    const auto proposed = both_reply(order(asked), drain::Reply::Kind::kSteps);
    const auto committed = both_reply(order(proposed), drain::Reply::Kind::kAccepted);
    return both_reply(order(committed), drain::Reply::Kind::kEnded);
  }

  template <typename Action>
  static std::vector<Action> all(const std::vector<JobAction>& actions) {
    std::vector<Action> found;
    for (const JobAction& action : actions) {
      if constexpr (std::is_constructible_v<RendezvousAction, Action>) {
        const auto* one = std::get_if<RendezvousAction>(&action);
        if (one == nullptr) continue;
        if (const auto* inner = std::get_if<Action>(one)) found.push_back(*inner);
      } else {
        if (const auto* one = std::get_if<Action>(&action)) found.push_back(*one);
      }
    }
    return found;
  }
  void close(const JobResult& result = {}) {
    std::vector<JobAction> actions;
    job_.close(result, now_, &actions);
  }
  // The job of the id is over, and its two nodes have left.
  void end() {
    close();
    for (const int index : {0, 1}) (void)step(rdzv::Leave{node(index), "the job is over"});
  }
  static drain::Order order(const std::vector<JobAction>& actions) {
    const auto sent = all<drain_action::Send>(actions);
    EXPECT_FALSE(sent.empty());
    return sent.empty() ? drain::Order{} : sent.back().order;
  }
  std::string answer_to_observer(const job_event::DrainRequested& request) {
    const auto answers = all<drain_action::Inform>(step(request));
    return answers.size() == 1 && !answers[0].is_agreed ? answers[0].text : "";
  }

  Instant now_ = Instant(seconds(1000));
  JobSettings settings_ = two_nodes();
  Job job_{"job", two_nodes(), now_, Duration::zero()};
};

}  // namespace elastic::core
