#include "elastic/store_client.h"

#include <algorithm>
#include <atomic>
#include <utility>

#include "core/base/text.h"
#include "core/store/wire.h"
#include "host/store/client_connection.h"
#include "host/store/client_pool.h"

// Theory of operation. A call checks its arguments, leases a connection (host/store/client_pool.h),
// writes its requests, reads the replies and returns the connection. Only the calling thread waits,
// in poll(2), within one set of limits that is created when the call begins.
//
// `get` has to wait for its key, but the protocol's GET does not: for a missing key PyTorch's libuv
// server replies with an empty value, and its classic server closes the connection. Sending WAIT
// and GET in one write does not work, because a server handles a request behind an open WAIT at
// once. So CHECK and GET are sent together: most keys exist, and that is one round trip. If CHECK
// reports a missing key, WAIT follows, and then the pair again. An empty value after a positive
// CHECK may be a key that was deleted between the two requests; another CHECK decides. If a server
// closes the connection for a missing key, the client remembers that and sends WAIT before GET from
// then on.

namespace elastic {
namespace {

using host::ClientPool;
using host::StoreKeys;
using Lease = ClientPool::Lease;
using Use = ClientPool::Use;
using wire::Opcode;

// One request whose reply is a number.
Status ask_number(Lease& connection, std::int64_t* number, const os::WaitLimits& limits) {
  Status status = connection->send(limits);
  return status.ok() ? connection->read_number(number, limits) : status;
}

// Whether all keys exist.
Status ask_check(Lease& connection, const StoreKeys& keys, bool* present,
                 const os::WaitLimits& limits) {
  host::append_keys_request(connection->new_request(), Opcode::kCheck, keys);
  char code = 0;
  Status status = connection->send(limits);
  if (status.ok()) status = connection->read_code(&code, limits);
  *present = code == wire::kReady;
  return status;
}

// Sends `request`, a WAIT or BARRIER, and blocks until it is released. A PING in the same write
// confirms earlier silent requests, so that other calls need not wait for this connection.
Status block_on(Lease& connection, std::string_view request, const os::WaitLimits& limits) {
  std::string* buffer = connection->new_request();
  const bool must_confirm = connection->has_silent_requests();
  if (must_confirm) connection->append_ping(buffer);
  buffer->append(request);
  Status status = connection->send(limits);
  if (status.ok() && must_confirm) status = connection->read_pong(limits);
  if (!status.ok()) return status;
  connection.allow_other_connections();
  return connection->read_release(limits);
}

Status wait_for(Lease& connection, const StoreKeys& keys, const os::WaitLimits& limits) {
  std::string request;
  host::append_keys_request(&request, Opcode::kWait, keys);
  return block_on(connection, request, limits);
}

}  // namespace

class StoreClient::Impl {
 public:
  Impl(std::unique_ptr<ClientPool> pool, Duration timeout)
      : pool_(std::move(pool)), timeout_(timeout.count()) {}

  ClientPool& pool() { return *pool_; }
  Duration timeout() const { return Duration(timeout_.load(std::memory_order_relaxed)); }
  void set_timeout(Duration timeout) { timeout_.store(timeout.count(), std::memory_order_relaxed); }

  // Runs one call by `work(limits)`. An error message contains the call, its keys and the server.
  template <typename Work>
  Status run(const char* call, const StoreKeys& keys, Timeout timeout, Work&& work) {
    if (pool_->is_in_child()) {
      return explain(call, keys,
                     {StatusCode::kFailedPrecondition,
                      "the client belongs to the parent process; use clone() in this process"});
    }
    const Duration wait = timeout.value_or(this->timeout());
    if (wait < Duration::zero()) {
      return explain(call, keys, {StatusCode::kInvalidArgument, "the timeout is negative"});
    }
    Status status = work(pool_->limits(wait));
    if (status.ok()) return status;
    if (status.code() != StatusCode::kDeadlineExceeded) return explain(call, keys, status);
    std::string message = "timeout after " + core::duration_text(wait);
    if (!status.message().empty()) message += ", " + std::string(status.message());
    return explain(call, keys, {StatusCode::kDeadlineExceeded, std::move(message)});
  }

  // Runs `exchange(connection)`, which reads all replies that it asks for unless it fails.
  template <typename Exchange>
  Status lease(Use use, const os::WaitLimits& limits, Exchange&& exchange) {
    auto connection = pool_->lease(use, limits);
    if (!connection.ok()) return connection.status();
    Status status = exchange(*connection);
    if (status.ok()) (*connection)->mark_idle();
    return status;
  }

  // A call that sends the request of `append(request)` and reads the replies by
  // `read(connection, limits)`.
  template <typename Append, typename Read>
  Status query(const char* call, const StoreKeys& keys, Timeout timeout, Append&& append,
               Read&& read) {
    return run(call, keys, timeout, [&](const os::WaitLimits& limits) {
      return lease(Use::kAnswered, limits, [&](Lease& connection) {
        append(connection->new_request());
        Status status = connection->send(limits);
        return status.ok() ? read(connection, limits) : status;
      });
    });
  }

  // A call whose request has no reply.
  template <typename Append>
  Status tell(const char* call, const StoreKeys& keys, Timeout timeout, Append&& append) {
    return run(call, keys, timeout, [&](const os::WaitLimits& limits) {
      return lease(Use::kSilent, limits, [&](Lease& connection) {
        append(connection->new_request());
        return connection->send_silent(limits);
      });
    });
  }

  // A call whose reply is one number.
  template <typename Append>
  Result<std::int64_t> ask_for_number(const char* call, const StoreKeys& keys, Timeout timeout,
                                      Append&& append) {
    std::int64_t number = 0;
    Status status =
        query(call, keys, timeout, append, [&](Lease& connection, const os::WaitLimits& limits) {
          return connection->read_number(&number, limits);
        });
    if (!status.ok()) return status;
    return number;
  }

  // Waits for `keys` and reads their values by `opcode`, GET or MULTI_GET.
  Status fetch(const char* call, const StoreKeys& keys, Opcode opcode,
               std::span<std::string> values, Timeout timeout) {
    return run(call, keys, timeout, [&](const os::WaitLimits& limits) {
      bool is_refused = false;
      const auto exchange = [&](Lease& connection) {
        return fetch_on(connection, keys, opcode, values, limits, &is_refused);
      };
      Status status = lease(Use::kAnswered, limits, exchange);
      if (!is_refused) return status;
      closes_on_missing_.store(true, std::memory_order_relaxed);
      return lease(Use::kAnswered, limits, exchange);
    });
  }

 private:
  // Sets `is_refused` if the server closed the connection because a key was missing.
  Status fetch_on(Lease& connection, const StoreKeys& keys, Opcode opcode,
                  std::span<std::string> values, const os::WaitLimits& limits, bool* is_refused) {
    while (true) {
      const bool waits_first = closes_on_missing_.load(std::memory_order_relaxed);
      if (waits_first) {
        if (Status status = wait_for(connection, keys, limits); !status.ok()) return status;
      }
      std::string* request = connection->new_request();
      if (!waits_first) host::append_keys_request(request, Opcode::kCheck, keys);
      append_fetch(request, opcode, keys);
      char code = wire::kReady;
      Status status = connection->send(limits);
      if (status.ok() && !waits_first) status = connection->read_code(&code, limits);
      if (!status.ok()) return status;
      for (std::string& value : values) {
        if (status.ok()) status = connection->read_bytes(&value, limits);
      }
      const bool was_present = code == wire::kReady;
      *is_refused = !was_present && status.code() == StatusCode::kUnavailable;
      if (!status.ok()) return status;

      if (std::ranges::none_of(values, &std::string::empty)) return {};
      bool is_present = false;
      if (was_present) status = ask_check(connection, keys, &is_present, limits);
      if (!status.ok() || is_present) return status;
      if (!waits_first) status = wait_for(connection, keys, limits);
      if (!status.ok()) return status;
    }
  }

  static void append_fetch(std::string* request, Opcode opcode, const StoreKeys& keys) {
    if (opcode == Opcode::kGet) {
      wire::append_key_request(request, opcode, host::wire_key(keys[0]));
    } else {
      host::append_keys_request(request, opcode, keys);
    }
  }

  // "get of key 'a' at 10.0.0.1:29500: timeout after 3 s"
  Status explain(const char* call, const StoreKeys& keys, const Status& status) const {
    std::string context = call;
    if (keys.size() > 0) context += " of " + host::describe(keys);
    const StoreClientOptions& options = pool_->options();
    context += " at " + options.host + ":" + std::to_string(options.port);
    return status.with_context(context);
  }

  const std::unique_ptr<ClientPool> pool_;
  std::atomic<Duration::rep> timeout_;
  std::atomic<bool> closes_on_missing_ = false;
};

StoreClient::StoreClient(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

StoreClient::~StoreClient() {
  // A forked child must not use the copies of its parent's locks and connections.
  if (impl_->pool().is_in_child()) static_cast<void>(impl_.release());
}

Result<std::unique_ptr<StoreClient>> StoreClient::connect(StoreClientOptions options) {
  if (options.port == 0) return Status(StatusCode::kInvalidArgument, "the store's port is 0");
  if (options.timeout < Duration::zero()) {
    return Status(StatusCode::kInvalidArgument, "the timeout is negative");
  }
  auto pool = ClientPool::connect(options);
  if (!pool.ok()) return pool.status();
  return std::unique_ptr<StoreClient>(
      new StoreClient(std::make_unique<Impl>(*std::move(pool), options.timeout)));
}

Result<std::unique_ptr<StoreClient>> StoreClient::clone() const {
  StoreClientOptions options = impl_->pool().options();
  options.timeout = timeout();
  return connect(std::move(options));
}

Status StoreClient::set(std::string_view key, std::string_view value, Timeout timeout) {
  if (Status status = host::check_bounds(key, value); !status.ok()) return status;
  return impl_->tell("set", StoreKeys(key), timeout, [&](std::string* request) {
    wire::append_key_value_request(request, Opcode::kSet, host::wire_key(key), value);
  });
}

Result<std::string> StoreClient::get(std::string_view key, Timeout timeout) {
  const StoreKeys keys(key);
  if (Status status = host::check_bounds(keys); !status.ok()) return status;
  std::string value;
  Status status = impl_->fetch("get", keys, Opcode::kGet, std::span(&value, 1), timeout);
  if (!status.ok()) return status;
  return value;
}

Result<std::int64_t> StoreClient::add(std::string_view key, std::int64_t delta, Timeout timeout) {
  if (Status status = host::check_bounds(key, {}); !status.ok()) return status;
  return impl_->ask_for_number("add", StoreKeys(key), timeout, [&](std::string* request) {
    wire::append_number_request(request, Opcode::kAdd, host::wire_key(key), delta);
  });
}

Result<bool> StoreClient::check(std::span<const std::string> names, Timeout timeout) {
  const StoreKeys keys(names);
  if (Status status = host::check_bounds(keys); !status.ok()) return status;
  bool present = false;
  Status status = impl_->run("check", keys, timeout, [&](const os::WaitLimits& limits) {
    return impl_->lease(Use::kAnswered, limits, [&](Lease& connection) {
      return ask_check(connection, keys, &present, limits);
    });
  });
  if (!status.ok()) return status;
  return present;
}

Status StoreClient::wait(std::span<const std::string> names, Timeout timeout) {
  const StoreKeys keys(names);
  if (Status status = host::check_bounds(keys); !status.ok()) return status;
  return impl_->run("wait", keys, timeout, [&](const os::WaitLimits& limits) {
    return impl_->lease(Use::kAnswered, limits,
                        [&](Lease& connection) { return wait_for(connection, keys, limits); });
  });
}

Result<std::string> StoreClient::compare_set(std::string_view key, std::string_view expected,
                                             std::string_view desired, Timeout timeout) {
  if (Status status = host::check_bounds(key, desired, expected); !status.ok()) return status;
  std::string value;
  Status status = impl_->query(
      "compare_set", StoreKeys(key), timeout,
      [&](std::string* request) {
        wire::append_compare_set(request, host::wire_key(key), expected, desired);
      },
      [&](Lease& connection, const os::WaitLimits& limits) {
        return connection->read_bytes(&value, limits);
      });
  if (!status.ok()) return status;
  return value;
}

Status StoreClient::append(std::string_view key, std::string_view value, Timeout timeout) {
  if (Status status = host::check_bounds(key, value); !status.ok()) return status;
  return impl_->tell("append", StoreKeys(key), timeout, [&](std::string* request) {
    wire::append_key_value_request(request, Opcode::kAppend, host::wire_key(key), value);
  });
}

Result<bool> StoreClient::delete_key(std::string_view key, Timeout timeout) {
  if (Status status = host::check_bounds(key, {}); !status.ok()) return status;
  auto deleted =
      impl_->ask_for_number("delete_key", StoreKeys(key), timeout, [&](std::string* request) {
        wire::append_key_request(request, Opcode::kDeleteKey, host::wire_key(key));
      });
  if (!deleted.ok()) return deleted.status();
  return *deleted != 0;
}

Result<std::vector<std::string>> StoreClient::multi_get(std::span<const std::string> names,
                                                        Timeout timeout) {
  const StoreKeys keys(names);
  if (Status status = host::check_bounds(keys); !status.ok()) return status;
  std::vector<std::string> values(names.size());
  Status status = impl_->fetch("multi_get", keys, Opcode::kMultiGet, values, timeout);
  if (!status.ok()) return status;
  return values;
}

Status StoreClient::multi_set(std::span<const std::pair<std::string, std::string>> items,
                              Timeout timeout) {
  if (Status status = host::check_bounds(items); !status.ok()) return status;
  return impl_->tell("multi_set", StoreKeys(), timeout, [&](std::string* request) {
    wire::append_list_header(request, Opcode::kMultiSet, items.size());
    for (const auto& [key, value] : items) {
      wire::append_bytes(request, host::wire_key(key));
      wire::append_bytes(request, value);
    }
  });
}

Result<std::int64_t> StoreClient::num_keys(Timeout timeout) {
  return impl_->ask_for_number("num_keys", StoreKeys(), timeout, [](std::string* request) {
    wire::append_bare_request(request, Opcode::kNumKeys);
  });
}

Result<std::vector<std::string>> StoreClient::list_keys(Timeout timeout) {
  std::vector<std::string> names;
  const auto read = [&](Lease& connection, const os::WaitLimits& limits) {
    std::int64_t count = 0;
    Status status = connection->read_number(&count, limits);
    for (std::int64_t i = 0; status.ok() && i < count; ++i) {
      std::string name;
      status = connection->read_bytes(&name, limits);
      // Keys without the "/" are not the user's: PyTorch counts its clients in "init/".
      if (status.ok() && name.starts_with('/')) names.push_back(name.substr(1));
    }
    return status;
  };
  Status status = impl_->query(
      "list_keys", StoreKeys(), timeout,
      [](std::string* request) { wire::append_bare_request(request, Opcode::kListKeys); }, read);
  if (!status.ok()) return status;
  return names;
}

Status StoreClient::queue_push(std::string_view queue, std::string_view value, Timeout timeout) {
  if (Status status = host::check_bounds(queue, value); !status.ok()) return status;
  return impl_->tell("queue_push", StoreKeys(queue), timeout, [&](std::string* request) {
    wire::append_key_value_request(request, Opcode::kQueuePush, host::wire_key(queue), value);
  });
}

Result<std::string> StoreClient::queue_pop(std::string_view queue, bool block, Timeout timeout) {
  const StoreKeys keys(queue);
  if (Status status = host::check_bounds(keys); !status.ok()) return status;
  std::string value;
  bool found = false;
  Status status = impl_->run("queue_pop", keys, timeout, [&](const os::WaitLimits& limits) {
    return impl_->lease(Use::kAnswered, limits, [&](Lease& connection) -> Status {
      while (true) {
        wire::append_key_request(connection->new_request(), Opcode::kQueuePop,
                                 host::wire_key(queue));
        std::int64_t length = 0;
        Status popped = ask_number(connection, &length, limits);
        found = popped.ok() && length > 0;
        if (found) popped = connection->read_bytes(&value, limits);
        if (!popped.ok() || found || !block) return popped;
        // After a push PyTorch's server keeps the woken waiter in the queue's list, and a later
        // push answers any wait that is then open on the connection. So the connection is not
        // reused.
        connection->retire();
        if (Status waited = wait_for(connection, keys, limits); !waited.ok()) return waited;
      }
    });
  });
  if (!status.ok()) return status;
  if (!found) {
    return Status(StatusCode::kNotFound,
                  "queue_pop of " + host::describe(keys) + ": the queue is empty");
  }
  return value;
}

Result<std::int64_t> StoreClient::queue_len(std::string_view queue, Timeout timeout) {
  if (Status status = host::check_bounds(queue, {}); !status.ok()) return status;
  return impl_->ask_for_number("queue_len", StoreKeys(queue), timeout, [&](std::string* request) {
    wire::append_key_request(request, Opcode::kQueueLen, host::wire_key(queue));
  });
}

Status StoreClient::barrier(std::string_view key, std::int64_t world_size, Timeout timeout) {
  const StoreKeys keys(key);
  if (Status status = host::check_bounds(keys); !status.ok()) return status;
  std::string request;
  wire::append_number_request(&request, Opcode::kBarrier, host::wire_key(key), world_size);
  return impl_->run("barrier", keys, timeout, [&](const os::WaitLimits& limits) {
    return impl_->lease(Use::kAnswered, limits,
                        [&](Lease& connection) { return block_on(connection, request, limits); });
  });
}

Status StoreClient::ping(Timeout timeout) {
  return impl_->run("ping", StoreKeys(), timeout, [&](const os::WaitLimits& limits) {
    return impl_->lease(Use::kAnswered, limits, [&](Lease& connection) {
      connection->append_ping(connection->new_request());
      Status status = connection->send(limits);
      return status.ok() ? connection->read_pong(limits) : status;
    });
  });
}

const std::string& StoreClient::host() const { return impl_->pool().options().host; }
std::uint16_t StoreClient::port() const { return impl_->pool().options().port; }
Duration StoreClient::timeout() const { return impl_->timeout(); }
void StoreClient::set_timeout(Duration timeout) { impl_->set_timeout(timeout); }

void StoreClient::close() {
  if (!impl_->pool().is_in_child()) impl_->pool().close();
}

}  // namespace elastic
