#pragma once

// A blocking client for TCPStore servers: ours and PyTorch's.
//
// Every call has a deadline (`timeout`, counted from the call, covering each byte of every reply).
// A call without a timeout uses the client's.
//
// Thread rule: any member from any thread at any time. A blocked call holds a connection of its own
// from the client's pool, so that it never delays another thread's call. In a child after fork()
// every call fails with kFailedPrecondition, because the connections belong to the parent; clone()
// in the child returns a working client.
//
// Errors of every call: kDeadlineExceeded (the message names the keys and the time),
// kUnavailable (connection refused, reset or closed), kPeerViolation (not a TCPStore server),
// kInvalidArgument (key or value over the protocol's limits), kFailedPrecondition (closed or
// forked), kCancelled (`interrupted` returned true). After kUnavailable the next call reconnects;
// the client never repeats a request that may have reached the server.
//
// SET, APPEND, MULTI_SET and QUEUE_PUSH have no reply. Their calls return when the kernel has
// accepted the request on an open connection; the server handles later calls of this client after
// them. If the connection breaks before the server has read them, the next call returns
// kUnavailable; a ping() that succeeds proves that the server handled all of them.
//
// PyTorch's client prefixes every key with "/". This client adds and removes that prefix, so that
// both clients see the same keys.

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
  // For connecting (with backoff and jitter; resolves the name for each attempt) and for each call.
  Duration timeout = std::chrono::seconds(300);
  // Called when a signal interrupts a blocked call; true ends it with kCancelled. May be empty.
  std::function<bool()> interrupted;
};

class ELASTIC_EXPORT StoreClient {
 public:
  using Timeout = std::optional<Duration>;  // nullopt: the client's own

  // Connects within the timeout; retries when the connection is refused or reset, or the name does
  // not resolve.
  static Result<std::unique_ptr<StoreClient>> connect(StoreClientOptions options);

  StoreClient(const StoreClient&) = delete;
  StoreClient& operator=(const StoreClient&) = delete;
  ~StoreClient();

  Status set(std::string_view key, std::string_view value, Timeout timeout = {});
  // Waits for the key. One round trip when the key exists.
  Result<std::string> get(std::string_view key, Timeout timeout = {});
  // Adds to a decimal counter (missing counts as 0) and returns the sum.
  Result<std::int64_t> add(std::string_view key, std::int64_t delta, Timeout timeout = {});
  // True if all keys exist.
  Result<bool> check(std::span<const std::string> keys, Timeout timeout = {});
  // Waits until all keys exist.
  Status wait(std::span<const std::string> keys, Timeout timeout = {});
  // Stores `desired` if the value is `expected` (missing: if expected is empty). Returns the value
  // after the call; for a missing key and a non-empty `expected` it returns `expected`, as in
  // torch.
  Result<std::string> compare_set(std::string_view key, std::string_view expected,
                                  std::string_view desired, Timeout timeout = {});
  Status append(std::string_view key, std::string_view value, Timeout timeout = {});
  // True if the key existed.
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
  // Returns when world_size callers have arrived. Use each key for one barrier only.
  Status barrier(std::string_view key, std::int64_t world_size, Timeout timeout = {});
  // One round trip; reads and changes no key.
  Status ping(Timeout timeout = {});

  // A new client of the same server, with its own connections; works after fork().
  Result<std::unique_ptr<StoreClient>> clone() const;

  const std::string& host() const;
  std::uint16_t port() const;
  Duration timeout() const;
  void set_timeout(Duration timeout);
  // Closes all connections; blocked calls end with kFailedPrecondition.
  void close();

 private:
  class Impl;
  explicit StoreClient(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace elastic
