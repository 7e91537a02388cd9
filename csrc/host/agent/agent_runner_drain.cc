// The stop at an agreed step: the part of AgentRunner between the coordinator and the guardian.

#include <chrono>
#include <csignal>
#include <utility>

#include "core/base/signal_name.h"
#include "host/agent/agent_runner.h"

namespace elastic::host {
namespace {

// The coordinator ends the job at the deadline. Without an answer of it this node leaves.
constexpr Duration kDrainMargin = std::chrono::seconds(5);

}  // namespace

void AgentRunner::request_drain(int signal, Duration limit) {
  const bool has_round = round_ != nullptr && !is_finished_ && membership_ != nullptr;
  const std::string name = core::signal_text(signal);
  if (!has_round || !membership_->request_drain({limit, name + " on " + host_name_})) {
    if (has_round) {
      report_message(AgentEvent::Kind::kDrain,
                     "the nodes of this rendezvous cannot agree on a step: stopping now");
    }
    return request_stop(SIGTERM);
  }
  drain_timer_.arm(add_saturating(add_saturating(loop_->now(), limit), kDrainMargin));
}

void AgentRunner::give_up_drain() {
  if (is_finished_ || drain_.is_reached()) return;
  report_message(AgentEvent::Kind::kDrain,
                 "the coordinator has not stopped the job in time: stopping this node");
  request_stop(SIGTERM);
}

void AgentRunner::on_drain_order(const drain::Order& order) { answer_drain(drain_.on(order)); }

void AgentRunner::answer_drain(const core::DrainMember::Answer& answer) {
  if (answer.reply && membership_ != nullptr) membership_->observe(*answer.reply);
  if (!answer.request) return;
  supervisor_->set_stop_step(*answer.request, [this](const drain::StopStepEvent& event) {
    answer_drain(drain_.on(event));
  });
}

}  // namespace elastic::host
