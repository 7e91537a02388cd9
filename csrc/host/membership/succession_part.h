#pragma once

// A session's part in the succession of its coordinator. The session passes on what it learns of
// the coordinator; the part decides where the session looks for it, and whether this process runs
// it. An extension implements it (session_succession.h). Loop thread only.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>

#include "core/session/session_wire.h"
#include "elastic/rendezvous_options.h"
#include "elastic/status.h"
#include "host/base/tokens.h"
#include "host/membership/membership.h"
#include "os/loop/registration.h"

namespace elastic::host {

class Hosting;

class SuccessionPart {
 public:
  struct Sink {
    // The session connects to the coordinator at this address.
    std::function<void(const std::string& address)> move;
    // It joins a job of the same id at this address, because its own has dissolved.
    std::function<void(const std::string& address, const std::string& reason)> displace;
    std::function<void(const std::string& message)> log;
    std::function<void(const std::string& message)> log_detail;
    std::function<void(MembershipCoordinator now)> coordinator;
    // The coordinator in this process has lost its authority for good: the node stops its workers.
    std::function<void(int exit_code, const std::string& reason)> lost;
  };

  virtual ~SuccessionPart() = default;
  // Another process may become the coordinator of the job.
  virtual bool is_enabled() const = 0;

  // ---- The node.

  struct Start {
    std::shared_ptr<Tokens> tokens;  // null: nothing is encrypted
    // Returns the address at which other nodes reach this host. `known`: the one that the store of
    // the job's record knows; "": none. Called only with such a store.
    std::function<std::string(const std::string& known)> address;
    std::function<void()> ready;  // the session may attempt to connect; called once
  };
  // Before the first attempt to connect. Errors: the store cannot be opened.
  virtual Status begin(Start start) = 0;
  // The node joins, or is there and joins later.
  virtual void introduce(const core::NodeInfo& node, const JobSettings& settings) = 0;
  // This process runs the coordinator of the job from now on, without the state of an earlier one.
  virtual void hosting_began() = 0;
  // A round begins: the agent that runs the coordinator logs what the job survives.
  virtual void round_started(const RoundRecord& record, int rank) = 0;
  virtual void set_spares(int spares) = 0;
  // The job's result is known: losses are expected from now on.
  virtual void job_ended() = 0;
  // This agent ends: it takes nothing over, and announces itself no more.
  virtual void end() = 0;

  // ---- The store that keeps the job's record.

  // Of the coordinator; "": it names none yet. nullopt: there is no such store.
  virtual std::optional<std::string> recorded_address() const = 0;
  // Why it names none. REQUIRES: recorded_address()
  virtual Status why_unrecorded() const = 0;
  // Gives the role of the coordinator back and calls `done`; without a store at once.
  virtual void release(std::function<void()> done) = 0;
  // No coordinator of the job is at the address. `is_reported`: the process there has answered
  // that; otherwise nothing of the job listens there.
  virtual void coordinator_absent(const std::string& address, bool is_reported) = 0;

  // ---- The session with the coordinator.

  // Adds what a coordinator must know.
  virtual void complete(session::ClientHello* hello) const = 0;
  // There is a connection to a process that has answered as a coordinator, perhaps of a different
  // job.
  virtual void session_connected() = 0;
  // It has replied. `address`: as this node reached it.
  virtual void session_opened(std::uint64_t incarnation, std::uint64_t term,
                              const std::string& address) = 0;
  virtual void session_active() = 0;
  virtual void session_closed(const JobSettings& settings, Duration round_trip) = 0;
  // A heartbeat has no reply.
  virtual void session_silent(const JobSettings& settings) = 0;
  // The coordinator at the other end named itself and the voters.
  virtual void informed(const succession::Incumbent& incumbent) = 0;
  virtual void set_timings(Duration node_timeout, Duration store_grace) = 0;
  // It has dissolved the job: the node joins the job of `by`.
  virtual void displaced(const succession::Incumbent& by) = 0;
  // It ends before the job, and this node may succeed it, which needs ports. Returns the reply.
  virtual session::OpenedPorts open_ports(const succession::Incumbent& coordinator) = 0;
  // The process at the other end names the coordinator. `is_from_coordinator`: the session was with
  // a coordinator. Returns the address to go to.
  virtual std::string sent_elsewhere(const succession::Incumbent& successor,
                                     bool is_from_coordinator) = 0;
};

// Defined where extensions are attached (membership.cc). `hosting` outlives the part.
std::unique_ptr<SuccessionPart> make_succession_part(os::EventLoop* loop,
                                                     const RendezvousOptions& options,
                                                     const std::string& run_id, Hosting* hosting,
                                                     SuccessionPart::Sink sink);

}  // namespace elastic::host
