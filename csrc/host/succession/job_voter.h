#pragma once

// The part of a process in the succession of a job's coordinator where voters keep the record:
// the machine with its voter port. Loop thread only.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "core/succession/succession_events.h"
#include "core/succession/succession_types.h"
#include "core/succession/voter_keeper.h"
#include "elastic/rendezvous_options.h"
#include "elastic/status.h"
#include "elastic/time.h"
#include "host/succession/job_keeper.h"
#include "host/succession/voter_links.h"
#include "os/loop/registration.h"

namespace elastic::host {

// In an agent it runs on the agent's loop; for a job of a separate coordinator, or of
// another job's agent, on the coordinator's loop and without a port of its own.
class JobVoter final : public JobKeeper {
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
    std::shared_ptr<Tokens> tokens = nullptr;  // null: connections are not encrypted
  };
  // `loop` outlives the object. Errors: the port cannot be opened.
  static Result<std::unique_ptr<JobVoter>> open(os::EventLoop* loop, const Options& options,
                                                Sink sink);
  ~JobVoter() override;

  void feed(succession::Event event) override;
  // With a new machine, at the same port. What was sent to the former one names another lineage,
  // and is ignored.
  void restart(const reg::LineageId& lineage) override;
  const std::string& address() const override { return address_; }
  void describe(succession::SurvivalFacts* facts) const override;

 private:
  JobVoter(os::EventLoop* loop, const Options& options, Sink sink);
  void begin();
  void execute(const succession::Action& action) override;
  succession::Machine& machine() const override { return *machine_; }

  succession::Settings settings_;
  std::string address_;
  std::unique_ptr<succession::VoterKeeper> machine_;
  VoterLinks links_;
};

}  // namespace elastic::host
