// The hosts of a job, as it follows them: what was found on them, which are excluded, and who asked
// for that.

#include <algorithm>
#include <string>
#include <utility>
#include <vector>

#include "core/base/earliest.h"
#include "core/base/text.h"
#include "core/job/job.h"

namespace elastic::core {

// An exclusion is a decision about the next round: it is in the record before anything follows.
void Job::pass_host_actions() {
  if (std::exchange(hosts_version_, hosts_->version()) != hosts_->version()) {
    gate_.decided_otherwise();
    has_changed_ = true;
  }
  const std::uint64_t number = gate_.last_needed();
  if (number == 0) {
    for (auto& waiting : std::exchange(waiting_actions_, {})) {
      out_->push_back(std::move(waiting.second));
    }
  }
  for (gate::HostAction& action : hosts_->take_actions()) {
    if (number == 0) {
      out_->push_back(std::move(action));
    } else {
      waiting_actions_.emplace_back(number, std::move(action));
    }
  }
}

void Job::feed_hosts(const gate::HostEvent& event) {
  hosts_->feed(event, now_);
  if (hosts_->version() != hosts_version_) rendezvous_step(rdzv::HostsChanged{});
}

void Job::on(const job_event::Found& event) {
  has_changed_ = true;
  if (is_over()) return;
  if (event.finding.verdict == gate::Verdict::kBad) {
    rendezvous_step(rdzv::HostBad{event.finding.host});
  }
  feed_hosts(event.finding);
}

// Hosts that are excluded already have no further one.
std::optional<Instant> Job::straggler_deadline() const {
  const auto limit = straggler_limit(rendezvous_.failure_rules());
  if (!limit || rendezvous_.phase() != RendezvousPhase::kRunning) return std::nullopt;
  std::optional<Instant> first;
  for (const hang::Straggler& one : hangs_.stragglers()) {
    if (hosts_->is_excluded(host_meant_by(one.node))) continue;
    first = earliest({first, add_saturating(one.progressed, *limit)});
  }
  return first;
}

void Job::judge_stragglers() {
  const auto deadline = straggler_deadline();
  if (!deadline || now_ < *deadline) return;
  for (const hang::Straggler& one : hangs_.stragglers()) {
    const FailureRule* const rule =
        find_straggler_rule(rendezvous_.failure_rules(), now_ - one.progressed);
    const std::string host = host_meant_by(one.node);
    if (rule == nullptr || hosts_->is_excluded(host)) continue;
    feed_hosts(gate::Exclude{host, rule->name + " excludes host " + host + ": rank " +
                                       std::to_string(one.rank) + " has made no progress for " +
                                       duration_text(now_ - one.progressed) +
                                       " while other ranks advanced"});
  }
}

void Job::on(const job_event::HostRequested& event) {
  const auto answer = [&](bool is_done, std::string text) {
    JobAction inform = gate_action::Inform{event.observer, is_done, std::move(text)};
    const std::uint64_t number = gate_.last_needed();
    if (number == 0 || !is_done) return out_->push_back(std::move(inform));
    waiting_actions_.emplace_back(number, std::move(inform));
  };
  if (is_over()) return answer(false, "the job has ended");
  if (rendezvous_.settings().max_nodes == 1) {
    return answer(false, "the job has one node, whose host cannot be excluded");
  }
  const std::string host = host_meant_by(event.host);
  const std::string why = hosts_->why_excluded(host);
  if (event.is_readmission) {
    if (why.empty()) return answer(false, "host " + host + " is not excluded");
    feed_hosts(gate::Readmit{host, event.why});
    return answer(true, "host " + host + " is no longer excluded");
  }
  feed_hosts(gate::Exclude{host, event.why});
  std::string text = "host " + host + " is excluded";
  for (const gate::Exclusion& one : hosts_->excluded(now_)) {
    if (one.host == host) text += " for " + duration_text(one.left);
  }
  text += "; " + stay_of(host);
  answer(true, std::move(text));
}

// What becomes of the nodes of a host that was excluded.
std::string Job::stay_of(const std::string& host) const {
  int here = 0;
  int done = 0;
  for (const NodeStatus& node : rendezvous_.nodes(now_)) {
    here += node.host == host ? 1 : 0;
    done += node.host == host && node.phase == rdzv::NodePhase::kDone ? 1 : 0;
  }
  if (here == 0) return "no node of it is here now";
  const std::string stays = here == 1 ? "its node stays" : "its nodes stay";
  if (done == here) return stays + " until another round follows: the workers have finished";
  if (rendezvous_.is_growth_due()) return "the round ends for that";
  if (const std::string drain = drain_.describe(); !drain.empty()) return stays + ": " + drain;
  return stays + " until the job has " + count_text(rendezvous_.settings().min_nodes, "node") +
         " without it, or until the next round";
}

// The text itself, if it names no node that is here.
std::string Job::host_meant_by(const std::string& text) const {
  for (const NodeStatus& node : rendezvous_.nodes(now_)) {
    if (node.name == text || node.address == text) return node.host;
  }
  return text;
}

}  // namespace elastic::core
