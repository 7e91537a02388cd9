#include "host/coordinator/observer_desk.h"

#include <utility>
#include <variant>

namespace elastic::host {

void ObserverDesk::add(SessionPeer* peer, const session::ObserverRequest& request) {
  peer->observed = this;
  if (observers_ == nullptr) observers_ = std::make_unique<JobObservers>(loop_, job_.source);
  observers_->add(peer, request);
}

void ObserverDesk::remove(SessionPeer* peer) {
  peer->observed = nullptr;
  std::erase_if(stacks_asked_, [peer](const auto& asked) { return asked.second == peer; });
  std::erase_if(drain_asked_, [peer](const auto& asked) { return asked.second == peer; });
  observers_->remove(peer);
  if (observers_->empty()) observers_.reset();
}

Status ObserverDesk::on_message(SessionPeer* peer, const session::ClientMessage& message) {
  if (std::holds_alternative<session::RequestStacks>(message)) {
    stacks_asked_[++requests_] = peer;
    job_.request_stacks(requests_);
    return {};
  }
  if (const auto* request = std::get_if<session::RequestDrain>(&message)) {
    return on(peer, *request);
  }
  return observers_->on_message(peer, message);
}

Status ObserverDesk::on(SessionPeer* peer, const session::RequestDrain& request) {
  if (peer->role() != PeerRole::kNode) {
    peer->send(session::DrainReport{
        false, "this is a token of observers, which only reads: use the token of the job"});
    return {};
  }
  drain_asked_[++requests_] = peer;
  job_.request_drain(request, requests_);
  return {};
}

void ObserverDesk::reply(std::uint64_t request, std::string stacks) {
  const auto found = stacks_asked_.find(request);
  if (found == stacks_asked_.end()) return;
  found->second->send(session::StacksReport{std::move(stacks)});
  stacks_asked_.erase(found);
}

void ObserverDesk::reply(const core::drain_action::Inform& answer) {
  const auto found = drain_asked_.find(answer.observer);
  if (found == drain_asked_.end()) return;
  found->second->send(session::DrainReport{answer.is_agreed, answer.text});
  drain_asked_.erase(found);
}

void ObserverDesk::job_changed() {
  if (observers_ != nullptr) observers_->job_changed();
}

void ObserverDesk::on_report(const NodeId& node, WorkerReport report) {
  observers_->on_report(node, std::move(report));
}

void ObserverDesk::end(const std::string& reason) {
  if (observers_ == nullptr) return;
  stacks_asked_.clear();
  drain_asked_.clear();
  observers_->end(reason);
  observers_.reset();
}

}  // namespace elastic::host
