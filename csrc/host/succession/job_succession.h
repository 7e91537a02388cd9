#pragma once

// This process's part in the succession of one job's coordinator, as the session sees it: a machine
// of core/succession, with its timer and its connections. Loop thread only.

#include <functional>
#include <optional>
#include <string>

#include "core/succession/succession_events.h"
#include "core/succession/survival.h"

namespace elastic::host {

class JobSuccession {
 public:
  // Receives the machine's actions that are not executed by the object. May feed() further events,
  // and must not destroy the object.
  using Sink = std::function<void(const succession::Action&)>;

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
};

}  // namespace elastic::host
