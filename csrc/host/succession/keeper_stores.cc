#include "elastic/rendezvous_backend.h"

#include <unistd.h>

#include <algorithm>
#include <array>
#include <string>
#include <string_view>
#include <utility>

#include "elastic/store_client.h"
#include "host/base/loopback_name.h"
#include "os/file/file.h"
#include "os/loop/clock.h"
#include "os/net/address.h"

namespace elastic {
namespace {

// Far above the state of the largest job that is sensible over a file.
constexpr std::size_t kStateBytesMax = 64u << 20;

// A run id in a file name: characters other than letters, digits, '-', '_' and '.' become %xx.
std::string as_file_name(std::string_view text) {
  constexpr std::string_view kPlain =
      "abcdefghijklmnopqrstuvwxyzABCDEFGHIJKLMNOPQRSTUVWXYZ0123456789-_.";
  constexpr char kHex[] = "0123456789abcdef";
  std::string name;
  for (const char letter : text) {
    if (kPlain.find(letter) != std::string_view::npos) {
      name += letter;
    } else {
      const auto byte = static_cast<unsigned char>(letter);
      name += {'%', kHex[byte >> 4], kHex[byte & 15]};
    }
  }
  return name;
}

// Errors of a file system that pass (a server that restarts, a stale handle) are retried; an
// invalid path is not.
Status as_unavailable(const Status& status) {
  switch (status.code()) {
    case StatusCode::kInvalidArgument:
    case StatusCode::kNotFound:
    case StatusCode::kFailedPrecondition: return status;
    default: return {StatusCode::kUnavailable, std::string(status.message())};
  }
}

// Over a file that all nodes can access.
//
// Readers take no lock: the file is replaced atomically, so they read one version or the next. A
// writer locks a second file, which is never replaced, compares the content, and replaces it.
//
// Weak point: over NFS it depends on how the directory is mounted. If names are cached (NFS 3
// without lookupcache=none), or locks exclude only processes of one host (nolock), one of two
// concurrent changes can be lost without an error.
class FileBackend final : public RendezvousBackend {
 public:
  explicit FileBackend(const FileBackendOptions& options)
      : path_(options.path + "." + as_file_name(options.run_id)),
        call_timeout_(options.call_timeout) {}

  std::string name() const override { return "file"; }

  Result<std::optional<StoredState>> get_state() override {
    Result<std::optional<std::string>> bytes = os::read_file(path_, kStateBytesMax);
    if (!bytes.ok()) return failure(bytes.status());
    if (!*bytes && is_away()) return away();
    if (!*bytes) return std::optional<StoredState>();
    was_there_ = true;
    return std::optional(StoredState{**bytes, **bytes});
  }

  Result<StoredWrite> set_state(std::string_view bytes,
                                const std::optional<std::string>& token) override {
    if (is_away()) return away();  // before the lock is created in its place
    auto lock =
        os::FileLock::acquire(path_ + ".lock", {.deadline = os::monotonic_now() + call_timeout_});
    if (!lock.ok()) return failure(lock.status());
    Result<std::optional<std::string>> there = os::read_file(path_, kStateBytesMax);
    if (!there.ok()) return failure(there.status());
    if (token && !*there) {
      return Status(StatusCode::kFailedPrecondition, path_ + " was removed under a running job");
    }
    if (*there != token) return StoredWrite{false, {**there, **there}};
    // It outlives this host: the next coordinator continues from it.
    if (token) {
      const Status replaced = os::replace_file(path_, bytes);
      if (!replaced.ok()) return failure(replaced);
    } else {
      // A client of a network file system may remember for a while that there is no file.
      const Result<bool> created = os::write_new_file(path_, bytes);
      if (!created.ok()) return failure(created.status());
      if (!*created) {
        there = os::read_file(path_, kStateBytesMax);
        if (!there.ok()) return failure(there.status());
        if (!*there) return Status(StatusCode::kUnavailable, path_ + " is created by another host");
        return StoredWrite{false, {**there, **there}};
      }
    }
    was_there_ = true;
    return StoredWrite{true, {std::string(bytes), std::string(bytes)}};
  }

 private:
  // A directory that was there, and lacks the lock, which is never removed, is not mounted now.
  bool is_away() const { return was_there_ && ::access((path_ + ".lock").c_str(), F_OK) != 0; }
  Status away() const {
    return {StatusCode::kUnavailable,
            path_ + " is missing with its lock file: is the directory mounted?"};
  }
  // What was accessible before is so again when its server, mount or ticket is.
  Status failure(const Status& status) const {
    if (!was_there_) return as_unavailable(status);
    return {StatusCode::kUnavailable, std::string(status.message())};
  }

  const std::string path_;
  const Duration call_timeout_;
  bool was_there_ = false;
};

const std::string kKeyPrefix = "elastic/rendezvous/";
constexpr std::string_view kNeverStored = "?";
// The limit of one attempt to connect; the rendezvous repeats attempts until its own timeout.
constexpr Duration kConnectWait = std::chrono::seconds(1);

// A call that times out means that the server cannot be reached now.
Status timeout_as_unavailable(const Status& status) {
  if (status.code() != StatusCode::kDeadlineExceeded) return status;
  return {StatusCode::kUnavailable, std::string(status.message())};
}

// Over one key of a TCPStore server.
//
// Reading is a COMPARE_SET that cannot succeed, since its expected value is never stored: the
// answer is the stored value, or the expected value itself if there is none. It takes one round
// trip and, unlike GET, never waits, and no server closes the connection because of it.
//
// A COMPARE_SET that fails on a missing key also answers with the expected value. No value is ever
// written twice, so this answer means that the key was removed, unless another process wrote the
// old value again: a CHECK decides.
class StoreBackend final : public RendezvousBackend {
 public:
  explicit StoreBackend(StoreBackendOptions options)
      : options_(std::move(options)), key_(kKeyPrefix + options_.run_id) {}

  std::string name() const override { return "tcpstore"; }

  Result<std::optional<StoredState>> get_state() override {
    if (Status status = connect(); !status.ok()) return status;
    Result<std::string> there = client_->compare_set(key_, kNeverStored, kNeverStored);
    if (!there.ok()) return timeout_as_unavailable(there.status());
    if (*there == kNeverStored) return std::optional<StoredState>();
    return std::optional(StoredState{*there, *there});
  }

  Result<StoredWrite> set_state(std::string_view bytes,
                                const std::optional<std::string>& token) override {
    if (Status status = connect(); !status.ok()) return status;
    Result<std::string> there = client_->compare_set(key_, token.value_or(""), bytes);
    if (!there.ok()) return timeout_as_unavailable(there.status());
    if (token && *there == *token) {
      const Result<bool> is_present = client_->check(std::array{key_});
      if (!is_present.ok()) return timeout_as_unavailable(is_present.status());
      if (!*is_present) {
        return Status(StatusCode::kFailedPrecondition,
                      "the store was restarted: the job's state in it is lost");
      }
    }
    return StoredWrite{*there == bytes, {*there, *there}};
  }

  // The local address from which the server is reached. "" if the server's name resolves to
  // loopback (on Debian the host's own name does): other hosts cannot use that address.
  std::string local_address() override {
    const auto found = os::look_up(options_.host, options_.port,
                                   {.deadline = os::monotonic_now() + options_.call_timeout});
    if (!found.ok()) return "";
    const bool is_own_name = found->front().is_loopback() && !host::is_loopback_name(options_.host);
    return is_own_name ? "" : os::address_towards(found->front());
  }

 private:
  Status connect() {
    if (client_) return {};
    StoreClientOptions options;
    options.host = options_.host;
    options.port = options_.port;
    options.timeout = std::min(kConnectWait, options_.call_timeout);
    auto client = StoreClient::connect(options);
    if (!client.ok()) return timeout_as_unavailable(client.status());
    client_ = *std::move(client);
    client_->set_timeout(options_.call_timeout);
    return {};
  }

  const StoreBackendOptions options_;
  const std::string key_;
  std::unique_ptr<StoreClient> client_;  // null until the server was reached
};

}  // namespace

std::shared_ptr<RendezvousBackend> make_file_backend(const FileBackendOptions& options) {
  return std::make_shared<FileBackend>(options);
}

std::shared_ptr<RendezvousBackend> make_store_backend(StoreBackendOptions options) {
  return std::make_shared<StoreBackend>(std::move(options));
}

}  // namespace elastic
