#include "host/coordinator/end_proofs.h"

#include <algorithm>
#include <chrono>
#include <utility>

#include "core/base/timings.h"
#include "os/loop/event_loop.h"

// Theory of operation. An address is tested once. Tests follow each other, so that a thousand nodes
// that begin together do not have a thousand connections more at once. A connection after the end
// of a session is made at once; it stays open while the guardian kills the workers, and is closed
// when the node resumes or is forgotten. If too many are open, as when all sessions break together,
// further nodes have their grace.

namespace elastic::host {
namespace {

using Step = core::EndProof::Step;

constexpr Duration kTestPace = std::chrono::milliseconds(1);
constexpr std::size_t kTestsMax = 64;  // at the same time
constexpr std::size_t kProbesMax = 512;
// For a connection to be made. A longer one proves nothing in time.
constexpr Duration kDialLimit = std::chrono::seconds(2);

}  // namespace

EndProofs::EndProofs(os::EventLoop* loop, std::function<void(const NodeId&)> ended)
    : loop_(loop), ended_(std::move(ended)), test_timer_(loop, [this] { test_next(); }) {}

void EndProofs::session_began(const NodeId& node, os::SocketAddress remote, std::uint16_t port) {
  if (port == 0 && !nodes_.contains(node)) return;
  Node& known = nodes_[node];
  remote.set_port(port);
  known.address = remote;
  follow(node, known.proof.session_began(port == 0 ? "" : remote.text()));
}

void EndProofs::session_closed(const NodeId& node, Duration grace) {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return;
  found->second.grace = grace;
  follow(node, found->second.proof.session_closed());
}

void EndProofs::forget(const NodeId& node) {
  const auto found = nodes_.find(node);
  if (found == nodes_.end()) return;
  close(&found->second);
  nodes_.erase(found);
}

void EndProofs::close(Node* node) {
  if (node->probe != nullptr) --num_probes_;
  node->probe.reset();
  node->again.reset();
}

void EndProofs::follow(const NodeId& node, Step step) {
  switch (step) {
    case Step::kNone: break;
    case Step::kDrop: close(&nodes_[node]); break;
    case Step::kDial:
      if (num_probes_ < kProbesMax) dial(node);
      break;
    case Step::kAgain: {
      Node& known = nodes_[node];
      close(&known);
      known.again = std::make_unique<os::Timer>(loop_, [this, node] { dial(node); });
      known.again->arm(loop_->now() + core::end_proof_interval(known.grace));
      break;
    }
    case Step::kTest:
      close(&nodes_[node]);
      untested_.push_back(node);
      if (!test_timer_.armed()) test_timer_.arm(loop_->now());
      break;
    case Step::kEnded:
      forget(node);
      ended_(node);
      break;
  }
}

void EndProofs::test_next() {
  if (num_probes_ < kTestsMax) {
    const NodeId node = untested_.front();
    untested_.pop_front();
    if (nodes_.contains(node)) dial(node);
  }
  if (!untested_.empty()) test_timer_.arm_after(kTestPace);
}

void EndProofs::dial(const NodeId& node) {
  Node& known = nodes_[node];
  if (known.probe == nullptr) ++num_probes_;
  known.probe = std::make_unique<os::ListenerProbe>(
      loop_, known.address, kDialLimit,
      [this, node](os::ListenerProbe::Outcome found) { on_outcome(node, found); });
}

void EndProofs::on_outcome(const NodeId& node, os::ListenerProbe::Outcome found) {
  core::EndProof& proof = nodes_[node].proof;
  switch (found) {
    case os::ListenerProbe::Outcome::kAnswered: return follow(node, proof.answered());
    case os::ListenerProbe::Outcome::kRefused: return follow(node, proof.refused());
    case os::ListenerProbe::Outcome::kUnknown: return follow(node, proof.failed());
  }
}

}  // namespace elastic::host
