#pragma once

// The connections of one StoreClient. A call leases one for its duration, so that a blocked call
// never delays another; idle connections are kept for the next call.
//
// Thread rule: any member from any thread. In a forked child only is_in_child() and options() may
// be called (the mutex may have been held by a thread that does not exist there).

#include <condition_variable>
#include <memory>
#include <mutex>
#include <optional>
#include <vector>

#include "elastic/status.h"
#include "elastic/store_client.h"
#include "host/store/client_connection.h"
#include "os/base/process.h"
#include "os/loop/wait.h"

namespace elastic::host {

class ClientPool {
 public:
  // What a call sends: requests with a reply, or without one (SET, APPEND, …).
  enum class Use : unsigned char { kAnswered, kSilent };

  // A connection for one call; it returns to the pool at the end of the lease.
  class Lease {
   public:
    Lease(ClientPool* pool, Use use, std::unique_ptr<ClientConnection> connection)
        : pool_(pool), use_(use), connection_(std::move(connection)) {}
    Lease(Lease&& other) noexcept = default;
    ~Lease() {
      if (connection_) pool_->give_back(use_, std::move(connection_));
    }
    ClientConnection* operator->() { return connection_.get(); }
    // Call it before a long wait, after a reply has arrived: other calls need no longer use this
    // connection in order to follow its silent requests.
    void allow_other_connections() { pool_->confirm(connection_.get()); }

   private:
    ClientPool* pool_;  // outlives the lease
    Use use_;
    std::unique_ptr<ClientConnection> connection_;
  };

  // A pool with one connection; see StoreClient::connect for the errors.
  static Result<std::unique_ptr<ClientPool>> connect(const StoreClientOptions& options);

  // Returns a usable connection: an idle one, or a new one within the limits. Errors: see
  // StoreClient.
  Result<Lease> lease(Use use, const os::WaitLimits& limits);
  // The limits of a call: `timeout` from now, close(), and the interrupt check.
  os::WaitLimits limits(Duration timeout) const;
  // Closes all connections: idle ones at once, others when their calls end, which they do soon.
  void close();

  const StoreClientOptions& options() const { return options_; }
  // Whether this is a copy in a forked child. May be called in the child.
  bool is_in_child() const { return fork_guard_.is_in_child(); }

 private:
  ClientPool(const StoreClientOptions& options, os::Notifier closing);
  Result<std::unique_ptr<ClientConnection>> open_connection(const os::WaitLimits& limits);
  Result<std::unique_ptr<ClientConnection>> lease_connection(Use use, const os::WaitLimits& limits);
  std::unique_ptr<ClientConnection> take_idle();
  Status confirm_abandoned(std::unique_ptr<ClientConnection> connection,
                           std::unique_lock<std::mutex>* lock, const os::WaitLimits& limits);
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
      nullptr;  // has silent requests that no reply has confirmed
  bool is_silent_leased_ = false;
  std::optional<os::SocketAddress> known_address_;  // the server's last known address
  std::condition_variable turn_;                    // one of the members above has changed
};

}  // namespace elastic::host
