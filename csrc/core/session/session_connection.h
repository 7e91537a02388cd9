#pragma once

// The connection of a node's session: its state in the table of session_table.h, the endpoints and
// attempts of the search for a coordinator, and the coordinator that answered. A part of
// SessionMachine.
//
// Pure: random numbers come from a seed. Not thread-safe.

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/random.h"
#include "core/session/session_table.h"
#include "elastic/status.h"
#include "elastic/time.h"

namespace elastic::core {

class SessionConnection {
 public:
  // REQUIRES: !endpoints.empty()
  SessionConnection(std::vector<std::string> endpoints, std::uint64_t seed);
  SessionConnection(const SessionConnection&) = delete;
  SessionConnection& operator=(const SessionConnection&) = delete;

  SessionState state() const { return state_; }
  // Changes to the next state and returns the reaction to execute.
  SessionReaction apply(SessionInput input);
  bool is_open() const;
  // The hello was sent on the current connection.
  bool is_greeted() const { return is_open() && state_ != SessionState::kConnected; }
  // Messages are sent at once.
  bool is_ready() const;
  // A connection was made at least once.
  bool was_open() const { return was_open_; }

  // ---- Attempts.

  // The index of the connection's endpoint, or of the endpoint to try next.
  std::size_t endpoint() const { return endpoint_; }
  // `keeps_backoff`: the connection led to a process that does not, or no longer does,
  // coordinate the job.
  void start_search(const Status& why, bool keeps_backoff = false);
  void set_error(const Status& why);
  // Selects the next endpoint, and returns how long to wait before the next attempt.
  Duration next_attempt();
  // The backoff starts again from its first delay.
  void reset_backoff() { backoff_.reset(); }
  void adopted();
  // The next attempt connects to this address, which is tried in turn with the endpoints from now
  // on, in place of an earlier one. The backoff starts again unless it is the same address.
  void redirect(std::string address);
  // Where the next attempt was redirected to; "": its endpoint is one of the list.
  std::string redirected_address() const {
    return endpoint_ < num_listed_ ? "" : endpoints_[endpoint_];
  }

  // ---- The coordinator of the current connection.

  std::uint64_t count_hello() { return ++hellos_; }
  void answered(std::uint64_t term);
  bool has_answered() const { return has_answered_; }
  void saw_term(std::uint64_t term);
  std::uint64_t term() const { return term_; }
  void set_leaving_reason(const std::string& reason) { leaving_reason_ = reason; }

  // ---- Messages about an outage.

  bool is_outage_logged() const { return is_outage_logged_; }
  std::string log_outage();  // the caller appends the time at which the search ends
  // Returns the message that ends an outage that was logged, once.
  std::optional<std::string> log_recovery();
  std::string lost_message(Duration limit) const;
  // The coordinator has had no majority of its voters for this long.
  std::string alone_message(Duration time) const;

 private:
  std::string endpoint_name() const;
  std::string error() const;
  // Whether a coordinator of the job has answered. At one of several endpoints there may be a
  // process that only redirects to the coordinator.
  bool was_found() const { return num_listed_ == 1 ? was_open_ : term_ > 0; }

  const std::size_t num_listed_;        // constant after construction
  std::vector<std::string> endpoints_;  // behind the listed ones: where the coordinator moved to

  SessionState state_ = SessionState::kIdle;
  bool was_open_ = false;

  Rng rng_;
  std::optional<Backoff> backoff_;
  std::size_t endpoint_ = 0;
  Status last_error_;
  std::vector<std::string> errors_;  // the last one of each listed endpoint
  bool is_outage_logged_ = false;

  std::uint64_t hellos_ = 0;
  bool has_answered_ = false;
  std::uint64_t term_ = 0;      // the highest of all coordinators and rounds
  std::string leaving_reason_;  // why the coordinator announced its end; "": it did not
};

}  // namespace elastic::core
