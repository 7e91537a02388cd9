#pragma once

// One process's part in the succession of one job's coordinator: a machine of core/succession, with
// its timer, and with what its keeper needs: the connections of the voter port (job_voter.h), or
// the store (record_keeper.h). Loop thread only.

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "core/succession/succession_events.h"
#include "core/succession/succession_machine.h"
#include "core/succession/succession_types.h"
#include "os/loop/registration.h"

namespace elastic::host {

// Passes events to the succession machine of a job, which may run on another loop. Its actions come
// back later, never inside the call. Empty: the job ends with its coordinator unless that is
// started again.
using SuccessionFeed = std::function<void(succession::Event)>;

class JobKeeper {
 public:
  // Receives the machine's actions that are not executed by the object. May feed() further events,
  // and must not destroy the object.
  using Sink = std::function<void(const succession::Action&)>;

  JobKeeper(const JobKeeper&) = delete;
  JobKeeper& operator=(const JobKeeper&) = delete;
  virtual ~JobKeeper();  // not from an action

  virtual void feed(succession::Event event);
  // The node's job has dissolved, and it joins the one of this lineage.
  virtual void restart(const reg::LineageId& lineage) = 0;

  const std::optional<succession::Incumbent>& incumbent() const { return machine().incumbent(); }
  bool is_coordinator() const { return machine().is_coordinator(); }
  // The voter port, as other nodes dial it: host:port; "": none.
  virtual const std::string& address() const = 0;
  // Adds what the coordinator of this process knows of those that keep the record.
  virtual void describe(succession::SurvivalFacts* facts) const = 0;

 protected:
  // One call of the machine.
  using Step = std::function<void(std::vector<succession::Action>* actions)>;

  // `loop` outlives the object.
  JobKeeper(os::EventLoop* loop, Sink sink);
  // Executes the actions of the step, then the actions of the steps that they have led to.
  void run(Step step);
  void forget_steps() { steps_.clear(); }
  os::EventLoop& loop() const { return loop_; }
  virtual void execute(const succession::Action& action) { pass_on(action); }
  void pass_on(const succession::Action& action) const { sink_(action); }

 private:
  // Nothing is left to be executed.
  virtual void settled() {}
  virtual succession::Machine& machine() const = 0;

  os::EventLoop& loop_;
  const Sink sink_;
  std::deque<Step> steps_;
  bool is_stepping_ = false;
  os::Timer timer_;
};

}  // namespace elastic::host
