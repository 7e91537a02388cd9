#include "host/workers/failure_examiner.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <cstdint>
#include <utility>

#include "core/workers/output_lines.h"
#include "os/base/fd.h"
#include "os/file/rotating_file.h"
#include "os/loop/clock.h"
#include "os/process/kernel_evidence.h"

namespace elastic::host {
namespace {

constexpr off_t kErrorFileBytesMax = 64 * 1024;
// The kernel stamps files with the time of its last tick.
constexpr Duration kFileClock = std::chrono::milliseconds(20);
constexpr const char* kGpuDevice = "/dev/nvidiactl";

struct FileEnd {
  std::string bytes;
  Instant modified;  // by the clock of the file system
  dev_t device = 0;
};

// The last `limit` bytes of a file; nullopt if it cannot be read or is empty.
std::optional<FileEnd> read_end(const std::string& path, off_t limit) {
  const os::UniqueFd file(::open(path.c_str(), O_RDONLY | O_NONBLOCK | O_CLOEXEC));
  struct stat info {};
  if (!file.valid() || ::fstat(file.get(), &info) != 0 || !S_ISREG(info.st_mode)) {
    return std::nullopt;
  }
  const off_t size = std::min<off_t>(info.st_size, limit);
  FileEnd end;
  end.bytes.resize(static_cast<std::size_t>(size));
  const ssize_t got = ::pread(file.get(), end.bytes.data(), end.bytes.size(), info.st_size - size);
  if (got <= 0) return std::nullopt;
  end.bytes.resize(static_cast<std::size_t>(got));
  const std::int64_t nanoseconds =
      std::int64_t{info.st_mtim.tv_sec} * 1'000'000'000 + info.st_mtim.tv_nsec;
  end.device = info.st_dev;
  end.modified = os::instant_of_wall_time(nanoseconds);
  return end;
}

// A file of limited size may have been replaced a moment ago.
std::optional<FileEnd> read_stderr_end(const WorkerFiles& files) {
  constexpr off_t kLimit = core::OutputTail::kBytesMax;
  auto end = read_end(files.stderr_path, kLimit);
  const std::size_t size = end ? end->bytes.size() : 0;
  if (files.stderr_pipe.empty() || size >= kLimit) return end;
  auto older = read_end(os::rotated_path(files.stderr_path, 1), kLimit - static_cast<off_t>(size));
  if (!older) return end;
  if (!end) return older;
  end->bytes.insert(0, older->bytes);
  return end;
}

}  // namespace

// A file server that is 50 ms behind would place the report of a worker that was stopped before the
// failure for which it was stopped.
Duration FailureExaminer::clock_of(const std::string& path, dev_t device) {
  const auto [found, is_new] = clocks_.try_emplace(device);
  if (is_new) found->second = file_clock_(path);
  return found->second;
}

void FailureExaminer::begin_round(Instant now) {
  clocks_.clear();
  files_since_ = Instant::min();
  since_ = now;
  if (!oom_counter_) oom_counter_.emplace();
  oom_kills_ = oom_counter_->read();
}

void FailureExaminer::continue_round(Instant now) {
  begin_round(now);
  files_since_ = now - kFileClock;
}

FailureFindings FailureExaminer::examine(const WorkerFiles& files, bool reads_kernel) {
  FailureFindings found;
  if (!files.error_file.empty()) {
    auto error = read_end(files.error_file, kErrorFileBytesMax);
    if (error) error->modified -= clock_of(files.error_file, error->device);
    if (error && error->modified >= files_since_) {
      found.reported_at = error->modified;
      found.error_message = core::error_file_message(error->bytes);
    }
  }
  if (!files.stderr_path.empty()) {
    auto end = read_stderr_end(files);
    if (end) end->modified -= clock_of(files.stderr_path, end->device);
    if (end && end->modified >= files_since_) {
      const bool is_traceback = core::is_uncaught_exception(end->bytes);
      if (is_traceback && !found.reported_at) found.reported_at = end->modified;
      found.stderr_bytes = std::move(end->bytes);
    }
  }
  if (!reads_kernel) return found;
  if (const auto now = oom_counter_ ? oom_counter_->read() : std::nullopt; now && oom_kills_) {
    found.kernel.oom_kills = *now - std::min(*now, *oom_kills_);
    found.kernel.oom_counter = oom_counter_->name();
  }
  struct statvfs shm {};
  if (::statvfs("/dev/shm", &shm) == 0) {
    found.kernel.shm_bytes = std::uint64_t{shm.f_blocks} * shm.f_frsize;
    found.kernel.shm_free_bytes = std::uint64_t{shm.f_bavail} * shm.f_frsize;
  }
  if (::access(kGpuDevice, F_OK) == 0) {
    os::read_kernel_log(since_, [&](std::string_view line) {
      if (std::string fault = core::gpu_fault_in(line); !fault.empty()) {
        found.kernel.gpu_fault = std::move(fault);
      }
    });
  }
  return found;
}

}  // namespace elastic::host
