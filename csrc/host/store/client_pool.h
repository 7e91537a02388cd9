#pragma once

// The connections of one StoreClient. A call leases one for its duration, so that a call that
// blocks never stands in the way of another; idle ones are kept for the next call.
//
// Thread rule: any member from any thread. In a forked child only is_in_child() and options() may
// be called (the mutex may have been held by a thread that does not exist there).

#include <condition_variable>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "elastic/status.h"
#include "elastic/store_client.h"
#include "host/store/client_connection.h"
#include "os/base/fork_guard.h"
#include "os/loop/notifier.h"

namespace elastic::host {

class ClientPool {
 public:
  // What a call sends: requests that are answered, or those that are not (SET, APPEND, …).
  enum class Use : unsigned char { kAnswered, kSilent };

  // A connection for one call; goes back to the pool with the lease.
  class Lease {
   public:
    Lease(ClientPool* pool, Use use, std::unique_ptr<ClientConnection> connection)
        : pool_(pool), use_(use), connection_(std::move(connection)) {}
    Lease(Lease&& other) noexcept = default;
    ~Lease() {
      if (connection_) pool_->give_back(use_, std::move(connection_));
    }
    ClientConnection* operator->() { return connection_.get(); }
    // Before a wait that may be long, once a reply has come: calls that had to follow this
    // connection's silent requests need not wait for it any longer.
    void let_others_pass() { pool_->confirm(connection_.get()); }

   private:
    ClientPool* pool_;  // outlives the lease
    Use use_;
    std::unique_ptr<ClientConnection> connection_;
  };

  // A pool with one connection; see StoreClient::connect for the errors.
  static Result<std::unique_ptr<ClientPool>> connect(const StoreClientOptions& options);

  // A usable connection: an idle one, or a new one within the limits. Errors: as those of a call.
  Result<Lease> lease(Use use, const os::WaitLimits& limits);
  // What ends a call: `timeout` from now, close(), or the interrupt check.
  os::WaitLimits limits(Duration timeout) const;
  // Closes all connections, now or when their calls have ended, which they do soon.
  void close();

  const StoreClientOptions& options() const { return options_; }
  // Whether this is a copy in a forked child. May be called there.
  bool is_in_child() const { return fork_guard_.is_in_child(); }

 private:
  ClientPool(const StoreClientOptions& options, os::Notifier closing);
  Result<std::unique_ptr<ClientConnection>> open_connection(const os::WaitLimits& limits);
  Result<std::unique_ptr<ClientConnection>> lease_connection(Use use, const os::WaitLimits& limits);
  std::unique_ptr<ClientConnection> take_idle();
  Status wait_for_turn(std::unique_lock<std::mutex>* lock, const os::WaitLimits& limits);
  void give_back(Use use, std::unique_ptr<ClientConnection> connection);
  void confirm(const ClientConnection* connection);
  void end_turn(Use use);

  // Constant after construction.
  const StoreClientOptions options_;
  const os::ForkGuard fork_guard_;
  mutable os::Notifier closing_;  // notified by close(), and never reset

  std::mutex mutex_;
  // Guarded by mutex_.
  bool is_closed_ = false;
  std::vector<std::unique_ptr<ClientConnection>> idle_;  // the last one is the first to be used
  const ClientConnection* unconfirmed_ =
      nullptr;  // has silent requests that were not overtaken yet
  bool is_silent_leased_ = false;
  std::optional<os::SocketAddress> known_address_;  // where the server was found last
  std::condition_variable turn_;                    // one of the above has changed
};

}  // namespace elastic::host
