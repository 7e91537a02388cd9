// A RendezvousBackend over a file that all nodes can access.
//
// Readers take no lock: the file is replaced atomically, so they read one version or the next. A
// writer locks a second file, which is never replaced, compares the content, and replaces it.

#include <string>
#include <string_view>
#include <utility>

#include "elastic/rendezvous_backends.h"
#include "os/file/file.h"
#include "os/file/file_lock.h"
#include "os/loop/clock.h"

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

class FileBackend final : public RendezvousBackend {
 public:
  explicit FileBackend(const FileBackendOptions& options)
      : path_(options.path + "." + as_file_name(options.run_id)),
        call_timeout_(options.call_timeout) {}

  std::string name() const override { return "file"; }

  Result<std::optional<StoredState>> get_state() override {
    Result<std::optional<std::string>> bytes = os::read_file(path_, kStateBytesMax);
    if (!bytes.ok()) return as_unavailable(bytes.status());
    if (!*bytes) return std::optional<StoredState>();
    return std::optional(StoredState{**bytes, **bytes});
  }

  Result<StoredWrite> set_state(std::string_view bytes,
                                const std::optional<std::string>& token) override {
    auto lock =
        os::FileLock::acquire(path_ + ".lock", {.deadline = os::monotonic_now() + call_timeout_});
    if (!lock.ok()) return as_unavailable(lock.status());
    Result<std::optional<std::string>> there = os::read_file(path_, kStateBytesMax);
    if (!there.ok()) return as_unavailable(there.status());
    if (token && !*there) {
      return Status(StatusCode::kFailedPrecondition, path_ + " was removed under a running job");
    }
    if (*there != token) return StoredWrite{false, {**there, **there}};
    const Status status = os::replace_file(path_, bytes, os::Durability::kProcessCrash);
    if (!status.ok()) return as_unavailable(status);
    return StoredWrite{true, {std::string(bytes), std::string(bytes)}};
  }

 private:
  const std::string path_;
  const Duration call_timeout_;
};

}  // namespace

std::shared_ptr<RendezvousBackend> make_file_backend(const FileBackendOptions& options) {
  return std::make_shared<FileBackend>(options);
}

}  // namespace elastic
