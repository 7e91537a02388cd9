#pragma once

// This process's part in the succession of one job's coordinator: the machine of core/succession,
// its timer, and the connections of the voter port.
//
// Loop thread only. In an agent it runs on the agent's loop; for a job of a separate coordinator,
// or of another job's agent, on the coordinator's loop and without a port of its own.

#include <cstdint>
#include <functional>
#include <memory>
#include <string>

#include "core/succession/succession_machine.h"
#include "elastic/agent_options.h"
#include "elastic/status.h"
#include "host/succession/job_succession.h"
#include "host/succession/voter_links.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

// Passes events to the succession machine of a job, which may run on another loop. Its actions come
// back later, never inside the call. Empty: the job has one voter, and ends with its coordinator
// unless that is started again.
using SuccessionFeed = std::function<void(succession::Event)>;

class JobVoter final : public JobSuccession {
 public:
  struct Options {
    std::string job_id;
    NodeId node;            // of this life of the process
    std::string address;    // at which other nodes reach this process; "": it opens no port
    std::string bind_host;  // where the port listens; "": every interface
    PortRange ports = {};
    std::size_t voters = 0;  // reg::RegisterSettings
    Duration node_timeout{};
    Duration store_grace{};
    Duration override_timeout{};                    // RendezvousOptions
    std::shared_ptr<TokenSource> tokens = nullptr;  // null: connections are not encrypted
  };
  // `loop` outlives the object. Errors: the port cannot be opened.
  static Result<std::unique_ptr<JobVoter>> open(os::EventLoop* loop, const Options& options,
                                                Sink sink);
  ~JobVoter() override;

  void feed(succession::Event event) override;
  // With a new machine, at the same port. What was sent to the former one names another lineage,
  // and is ignored.
  void restart(const reg::LineageId& lineage) override;
  const std::optional<succession::Incumbent>& incumbent() const override {
    return machine_->incumbent();
  }
  bool is_coordinator() const override { return machine_->is_coordinator(); }
  const std::string& address() const override { return address_; }
  void describe(succession::SurvivalFacts* facts) const override;
  const succession::Machine& machine() const { return *machine_; }

 private:
  JobVoter(os::EventLoop* loop, const Options& options, Sink sink);
  void begin();
  void execute(const succession::Action& action) override;
  std::optional<Instant> next_deadline() const override { return machine_->next_deadline(); }

  succession::Settings settings_;
  std::string address_;
  std::unique_ptr<succession::Machine> machine_;
  VoterLinks links_;
};

// "10.0.0.7:4711", "[::1]:4711".
std::string join_address(const std::string& host, std::uint16_t port);

}  // namespace elastic::host
