#pragma once

// Connects to the liveness ports of a job's nodes, as core::EndProof asks, and reports a node whose
// process has ended. Loop thread only.

#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <map>
#include <memory>

#include "core/session/end_proof.h"
#include "elastic/rendezvous_types.h"
#include "os/loop/registration.h"
#include "os/net/listener.h"

namespace elastic::host {

class EndProofs {
 public:
  // `ended` may call any member.
  EndProofs(os::EventLoop* loop, std::function<void(const NodeId&)> ended);

  // A session of the node has begun; `remote` is its other end. Port 0: the node has none.
  void session_began(const NodeId& node, os::SocketAddress remote, std::uint16_t port);
  // It ended without a Leave; the node may resume within the grace.
  void session_closed(const NodeId& node, Duration grace);
  // The node has left, or is lost.
  void forget(const NodeId& node);

 private:
  struct Node {
    core::EndProof proof;
    os::SocketAddress address;
    std::unique_ptr<os::ListenerProbe> probe;
    Duration grace{};
    std::unique_ptr<os::Timer> again;
  };
  void follow(const NodeId& node, core::EndProof::Step step);
  void dial(const NodeId& node);
  void on_outcome(const NodeId& node, os::ListenerProbe::Outcome found);
  void test_next();
  void close(Node* node);

  os::EventLoop* const loop_;
  const std::function<void(const NodeId&)> ended_;
  std::map<NodeId, Node> nodes_;
  std::size_t num_probes_ = 0;
  std::deque<NodeId> untested_;
  os::Timer test_timer_;
};

}  // namespace elastic::host
