#pragma once

// This process's part in the succession of one job's coordinator, as the session sees it: a machine
// of core/succession, with its timer and its connections. Loop thread only.

#include <deque>
#include <functional>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/succession/succession_events.h"
#include "core/succession/survival.h"
#include "elastic/time.h"
#include "os/loop/event_loop.h"

namespace elastic::host {

class JobSuccession {
 public:
  // Receives the machine's actions that are not executed by the object. May feed() further events,
  // and must not destroy the object.
  using Sink = std::function<void(const succession::Action&)>;

  JobSuccession(const JobSuccession&) = delete;
  JobSuccession& operator=(const JobSuccession&) = delete;
  virtual ~JobSuccession() = default;

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

 protected:
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

}  // namespace elastic::host
