// The beginning and the end of a node's session, and what is known of a node beyond it.

#include <algorithm>
#include <string>
#include <utility>

#include "host/coordinator/coordinator_job.h"

namespace elastic::host {
namespace {

// How many secrets of nodes that have left are kept.
constexpr std::size_t kStaleSecretsMax = 256;

}  // namespace

Status CoordinatorJob::admit(const session::ClientHello& hello) {
  const auto [found, is_new] = credentials_.try_emplace(hello.node);
  Credentials& known = found->second;
  if (!is_new && known.secret != hello.secret) {
    return Status(StatusCode::kFailedPrecondition,
                  "the hello for " + name_of(hello.node) +
                      " has the wrong secret: it is from another process");
  }
  if (!is_new && hello.attempt <= known.attempt) {
    return Status(StatusCode::kAborted,
                  "a later session of " + name_of(hello.node) + " has already begun");
  }
  known = {hello.secret, hello.attempt};
  // Rarely: it visits all nodes.
  const std::size_t needed = std::max(sessions_.size(), secrets_kept_);
  if (credentials_.size() > 2 * needed + kStaleSecretsMax) forget_secrets(hello.node);
  return {};
}

// Removes what is known of nodes that have no session and are not expected to resume. The session
// of the node that is being admitted begins after this.
void CoordinatorJob::forget_secrets(const NodeId& admitted) {
  std::map<NodeId, Credentials> kept;
  const auto keep = [&](const NodeId& id) {
    if (const auto found = credentials_.find(id); found != credentials_.end()) kept.insert(*found);
  };
  keep(admitted);
  for (const auto& [id, peer] : sessions_) keep(id);
  if (job_ != nullptr) {
    for (const core::NodeStatus& status : rendezvous()->nodes(context_.loop->now()))
      keep(status.id);
  }
  credentials_ = std::move(kept);
  secrets_kept_ = credentials_.size();
}

void CoordinatorJob::add(SessionPeer* peer) {
  SessionPeer*& current = sessions_[peer->node];
  if (current != nullptr) {
    current->job = nullptr;  // not a lost session: the node has a newer one
    peer->name = current->name;
    current->close();
  }
  current = peer;
  peer->job = this;
  end_proofs_.session_began(peer->node, peer->remote(), peer->liveness_port);
  if (!peer->is_from_this_host()) publish_address(*peer);
  if (counts_ != session::Counts{}) peer->send(counts_);
  if (observers_.watches_workers()) peer->send(session::WatchWorkers{true});
  // Without voters nobody names a successor, so that its nodes need no lineage.
  const bool has_voters = incumbent_ && !incumbent_->voters.empty();
  if (has_voters && peer->succession) peer->send(session::Incumbent{*incumbent_, false});
  if (is_offered()) member_returned(peer);
}

void CoordinatorJob::remove(SessionPeer* peer) {
  peer->job = nullptr;
  sessions_.erase(peer->node);
  if (is_offered()) {
    member_disconnected(*peer);
  } else if (job_ != nullptr) {
    if (peer->has_joined && context_.log && !is_over()) {
      log("the session of " + peer->name + " was closed");
    }
    step(rdzv::SessionLost{peer->node, peer->least_grace});
  }
  if (peer->has_joined && !is_over()) {
    const Duration grace = rendezvous()->settings().reconnect_grace;
    end_proofs_.session_closed(peer->node, std::max(grace, peer->least_grace));
  } else {
    end_proofs_.forget(peer->node);
  }
  mark_changed();
}

std::string CoordinatorJob::name_of(const NodeId& node) const {
  const auto found = sessions_.find(node);
  if (found != sessions_.end() && !found->second->name.empty()) return found->second->name;
  std::string name = job_ == nullptr ? "" : rendezvous()->name_of(node);
  return name.empty() ? "node " + to_string(node) : name;
}

}  // namespace elastic::host
