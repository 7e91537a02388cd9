#pragma once

// A blocking client for TCPStore servers: ours and PyTorch's own.
//
// Every call has a deadline (`timeout`, counted from the call, covering each byte of every reply).
// Where a call is given no timeout it uses the client's.
//
// Thread rule: any member from any thread at any time. A blocked call holds a connection of its own
// from the client's pool, so that it never delays another thread's call. Use in a child after
// fork() is refused with kFailedPrecondition: the parent's connections are not the child's to use;
// clone() in the child gives a working client.
//
// Errors of every call: kDeadlineExceeded (the message names the keys and the time),
// kUnavailable (connection refused, reset or closed), kPeerViolation (not a TCPStore server),
// kInvalidArgument (key or value over the protocol's bounds), kFailedPrecondition (closed or
// forked), kCancelled (the interrupt check said so). After kUnavailable the next call connects
// anew; a request that may have reached the server is never sent twice by itself.
//
// SET, APPEND, MULTI_SET and QUEUE_PUSH have no reply. Their calls return when the kernel has taken
// the request, on a connection that was open then; what this client calls later is served later.
// Should the connection break before the server has read them, the next call is kUnavailable; a
// ping() that succeeds proves that all of them were served.
//
// Keys are the user's; the "/" that PyTorch's client puts before each of them is added and removed
// here, so that both clients see the same keys.

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "elastic/export.h"
#include "elastic/status.h"
#include "elastic/time.h"

namespace elastic {

struct StoreClientOptions {
  std::string host = "127.0.0.1";
  std::uint16_t port = 0;
  // For connecting (with backoff and jitter, resolving again each time) and for each call.
  Duration timeout = std::chrono::seconds(300);
  // Called when a signal interrupts a blocked call; true gives up with kCancelled. May be empty.
  std::function<bool()> interrupted;
};

class ELASTIC_EXPORT StoreClient {
 public:
  using Timeout = std::optional<Duration>;  // nullopt: the client's own

  // Connects within the timeout; refused, reset and unresolvable are retried until then.
  static Result<std::unique_ptr<StoreClient>> connect(StoreClientOptions options);

  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;
  ~StoreClient();

  Status set(std::string_view key, std::string_view value, Timeout timeout = {});
  // Waits for the key. One round trip when it is there.
  Result<std::string> get(std::string_view key, Timeout timeout = {});
  // Adds to a decimal counter (missing counts as 0) and returns the sum.
  Result<std::int64_t> add(std::string_view key, std::int64_t delta, Timeout timeout = {});
  // True if all keys are present.
  Result<bool> check(std::span<const std::string> keys, Timeout timeout = {});
  // Waits until all keys are present.
  Status wait(std::span<const std::string> keys, Timeout timeout = {});
  // Stores `desired` if the value is `expected` (missing: if expected is empty). Returns the value
  // that is there now; a missing key with a non-empty expectation returns `expected`, as in torch.
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired, Timeout timeout = {});
  Status append(std::string_view key, std::string_view value, Timeout timeout = {});
  // True if the key was there.
  Result<bool> delete_key(std::string_view key, Timeout timeout = {});
  // Waits for all keys, then returns their values in order.
  Result<std::vector<std::string>> multi_get(std::span<const std::string> keys,
                                             Timeout timeout = {});
  Status multi_set(std::span<const std::pair<std::string, std::string>> items,
                   Timeout timeout = {});
  Result<std::int64_t> num_keys(Timeout timeout = {});
  Result<std::vector<std::string>> list_keys(Timeout timeout = {});
  Status queue_push(std::string_view queue, std::string_view value, Timeout timeout = {});
  // With block: waits for an element. Without: kNotFound when the queue is empty.
  Result<std::string> queue_pop(std::string_view queue, bool block = true, Timeout timeout = {});
  Result<std::int64_t> queue_len(std::string_view queue, Timeout timeout = {});
  // Returns when world_size callers have arrived. A key serves for one barrier.
  Status barrier(std::string_view key, std::int64_t world_size, Timeout timeout = {});
  // One round trip that touches no key.
  Status ping(Timeout timeout = {});

  // A client of the same server with connections of its own; works after fork().
  Result<std::unique_ptr<StoreClient>> clone() const;

  const std::string& host() const;
  std::uint16_t port() const;
  Duration timeout() const;
  void set_timeout(Duration timeout);
  // Closes all connections; calls that are blocked end with kFailedPrecondition.
  void close();

 private:
  class Impl;
  explicit StoreClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elastic
