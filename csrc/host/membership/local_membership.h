#pragma once

// The rendezvous of a job with one node: the machine runs in the agent's process, without a
// network.
//
// Loop thread only.

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "elastic/rendezvous.h"
#include "host/coordinator/drain_desk.h"
#include "host/coordinator/hang_desk.h"
#include "host/membership/membership.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

class LocalMembership final : public Membership {
 public:
  // `loop` outlives the membership. The job has one node, whatever `settings` allow.
  LocalMembership(os::EventLoop* loop, JobSettings settings, std::string address, Sink sink);

  void send(const NodeStatement& statement) override;
  void observe(const hang::NodeProgress& progress) override;
  void observe(const hang::NodeStacks& stacks) override;
  void observe(const hang::RankFinished& finished) override;
  void observe(const drain::Reply& reply) override;
  bool request_drain(const drain::Notice& notice) override;
  int waiting_nodes() const override { return job_.waiting_nodes(); }
  void drain(Duration limit, std::function<void()> done) override;

 private:
  void step(const RendezvousEvent& event);
  void tick();
  void receive(MembershipEvent event);
  void deliver();

  os::EventLoop* const loop_;
  const Sink sink_;
  Rendezvous job_;
  std::deque<MembershipEvent> received_;
  std::function<void()> drained_;
  HangDesk hangs_;
  DrainDesk drain_;
  NodeId node_;                    // that has joined
  std::optional<NodeId> waiting_;  // the node, from its join until a round or the end
  os::EventLoop::Timer delivery_;
  os::EventLoop::Timer tick_;
};

}  // namespace elastic::host
