#pragma once

// The succession of a job's coordinator where a store keeps the record: the machine of
// core/succession/kept_machine.h, its timer, and the thread that calls the store.
//
// Loop thread only.

#include <functional>
#include <memory>
#include <string>

#include "core/succession/kept_machine.h"
#include "elastic/rendezvous_options.h"
#include "elastic/status.h"
#include "host/succession/job_succession.h"
#include "host/succession/keeper_thread.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

class RecordKeeper final : public JobSuccession {
 public:
  // `address`: receives, once, before any action, the address at which others reach this host as
  // far as the store knows; "": it does not. `loop` outlives the object. REQUIRES: options.backend
  static Result<std::unique_ptr<RecordKeeper>> open(os::EventLoop* loop,
                                                    const RendezvousOptions& options,
                                                    std::function<void(std::string)> address,
                                                    Sink sink);
  ~RecordKeeper() override = default;

  void feed(succession::Event event) override;
  void restart(const reg::LineageId&) override {}  // a store keeps one lineage
  const std::optional<succession::Incumbent>& incumbent() const override {
    return machine_.incumbent();
  }
  bool is_coordinator() const override { return machine_.is_coordinator(); }
  const std::string& address() const override { return no_voter_port_; }
  void describe(succession::SurvivalFacts*) const override {}

  // As in KeptMachine.
  void set_node(const NodeId& node) { machine_.set_node(node); }
  void set_rank(int rank) { machine_.set_rank(rank); }
  const std::string& coordinator_address() const { return machine_.address(); }
  std::string explain() const { return machine_.explain(); }
  // Gives the office back, if this process holds it, and calls `done`: at once if it does not.
  void release(std::function<void()> done);

 private:
  RecordKeeper(os::EventLoop* loop, const RendezvousOptions& options, Sink sink);
  void answered(KeeperAnswer answer);
  void settled() override;
  std::optional<Instant> next_deadline() const override { return machine_.next_deadline(); }

  const std::string no_voter_port_;
  succession::KeptMachine machine_;
  bool was_interrupted_ = false;
  std::function<void()> on_released_;
  std::unique_ptr<KeeperThread> thread_;
};

}  // namespace elastic::host
