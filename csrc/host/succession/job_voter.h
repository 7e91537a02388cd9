#pragma once

// This process's part in the succession of one job's coordinator: a machine of core/succession,
// with its timer, and with the connections of the voter port or the store that keeps the record
// (record_keeper.h). Loop thread only.

#include <cstdint>
#include <deque>
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
#include "host/succession/voter_links.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

// Passes events to the succession machine of a job, which may run on another loop. Its actions come
// back later, never inside the call. Empty: the job has one voter, and ends with its coordinator
// unless that is started again.
using SuccessionFeed = std::function<void(succession::Event)>;

// What the session sees of both.
class JobSuccession {
 public:
  // Receives the machine's actions that are not executed by the object. May feed() further events,
  // and must not destroy the object.
  using Sink = std::function<void(const succession::Action&)>;

  JobSuccession(const JobSuccession&) = delete;
  JobSuccession& operator=(const JobSuccession&) = delete;
  virtual ~JobSuccession();  // not from an action

  virtual void feed(succession::Event event) = 0;
  // The node's job has dissolved, and it joins the one of this lineage.
  virtual void restart(const reg::LineageId& lineage) = 0;

  virtual const std::optional<succession::Incumbent>& incumbent() const = 0;
  virtual bool is_coordinator() const = 0;
  // The voter port, as other nodes dial it: host:port; "": none.
  virtual const std::string& address() const = 0;
  // Adds what the coordinator of this process knows of those that keep the record.
  virtual void describe(succession::SurvivalFacts* facts) const = 0;

 protected:
  // One call of the machine.
  using Step = std::function<void(std::vector<succession::Action>* actions)>;

  // `loop` outlives the object.
  JobSuccession(os::EventLoop* loop, Sink sink);
  // Executes the actions of the step, then the actions of the steps that they have led to.
  void run(Step step);
  void forget_steps() { steps_.clear(); }
  os::EventLoop& loop() const { return loop_; }
  virtual void execute(const succession::Action& action) { pass_on(action); }
  void pass_on(const succession::Action& action) const { sink_(action); }

 private:
  // Nothing is left to be executed.
  virtual void settled() {}
  virtual std::optional<Instant> next_deadline() const = 0;

  os::EventLoop& loop_;
  const Sink sink_;
  std::deque<Step> steps_;
  bool is_stepping_ = false;
  os::EventLoop::Timer timer_;
};

// With voters. In an agent it runs on the agent's loop; for a job of a separate coordinator, or of
// another job's agent, on the coordinator's loop and without a port of its own.
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
  const succession::VoterKeeper& machine() const { return *machine_; }

 private:
  JobVoter(os::EventLoop* loop, const Options& options, Sink sink);
  void begin();
  void execute(const succession::Action& action) override;
  std::optional<Instant> next_deadline() const override { return machine_->next_deadline(); }

  succession::Settings settings_;
  std::string address_;
  std::unique_ptr<succession::VoterKeeper> machine_;
  VoterLinks links_;
};

// "10.0.0.7:4711", "[::1]:4711".
std::string join_address(const std::string& host, std::uint16_t port);

}  // namespace elastic::host
