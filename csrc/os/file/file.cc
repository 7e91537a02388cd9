#include "os/file/file.h"

#include <fcntl.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statfs.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <filesystem>
#include <iterator>
#include <system_error>
#include <utility>

#include "os/base/fd.h"
#include "os/base/posix_error.h"
#include "os/file/temporary_sweep.h"
#include "os/loop/clock.h"

namespace elastic::os {
namespace {

// flock(2) has no deadline, so it is polled; locks are held for short times only.
constexpr Duration kFirstWait = std::chrono::microseconds(200);
constexpr Duration kLongestWait = std::chrono::milliseconds(10);
// Another process may remove a new directory before it is locked; give up after this many attempts.
constexpr int kAttemptsMax = 10;

// Returns errno; EFBIG: there is more than `bytes_max`.
int read_whole(int fd, std::size_t bytes_max, std::string* bytes) {
  char piece[64 << 10];
  while (true) {
    const ssize_t got = ::read(fd, piece, sizeof piece);
    if (got == 0) return 0;
    if (got < 0 && errno != EINTR) return errno;
    if (got > 0) bytes->append(piece, static_cast<std::size_t>(got));
    if (bytes->size() > bytes_max) return EFBIG;
  }
}

int write_all(int fd, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(fd, bytes.data(), bytes.size());
    if (put < 0 && errno != EINTR) return errno;
    if (put > 0) bytes.remove_prefix(static_cast<std::size_t>(put));
  }
  return 0;
}

// Flushes the rename, which is a change of the directory.
int sync_parent(const std::string& path) {
  const std::size_t slash = path.rfind('/');
  const std::string parent = slash == std::string::npos ? "." : path.substr(0, slash + 1);
  const UniqueFd fd(::open(parent.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!fd.valid()) return errno;
  // Some file systems cannot sync a directory and return EINVAL.
  return ::fsync(fd.get()) == 0 || errno == EINVAL ? 0 : errno;
}

bool is_same(const struct stat& a, const struct stat& b) {
  return a.st_dev == b.st_dev && a.st_ino == b.st_ino && a.st_size == b.st_size &&
         a.st_mode == b.st_mode && a.st_ctim.tv_sec == b.st_ctim.tv_sec &&
         a.st_ctim.tv_nsec == b.st_ctim.tv_nsec;
}

std::string octal(mode_t mode) {
  std::array<char, 16> text{};
  std::snprintf(text.data(), text.size(), "%04o", static_cast<unsigned>(mode) & 07777U);
  return text.data();
}

Result<std::string> unique_directory_in(const std::string& parent, std::string_view stem) {
  std::error_code error;
  const std::filesystem::path absolute = std::filesystem::absolute(parent, error);
  if (error) return posix_error("cannot create a directory in " + parent, error.value());
  std::string path = (absolute / stem).lexically_normal().string() + "_XXXXXX";
  if (::mkdtemp(path.data()) == nullptr) {
    return posix_error("cannot create a directory in " + parent, errno);
  }
  return path;
}

}  // namespace

Result<std::optional<std::string>> read_file(const std::string& path, std::size_t bytes_max) {
  const UniqueFd fd(::open(path.c_str(), O_RDONLY | O_CLOEXEC));
  if (!fd.valid()) {
    if (errno == ENOENT) return std::optional<std::string>();
    return posix_error("cannot read " + path, errno);
  }
  std::string bytes;
  const int error = read_whole(fd.get(), bytes_max, &bytes);
  if (error == EFBIG) {
    return Status(StatusCode::kResourceExhausted, "cannot read " + path + ": it has more than " +
                                                      std::to_string(bytes_max) + " bytes");
  }
  if (error != 0) return posix_error("cannot read " + path, error);
  return std::optional(std::move(bytes));
}

namespace {

// A new file: in a shared directory another user could own one of this name, or link it.
Status write_fresh(const std::string& fresh, std::string_view bytes) {
  ::unlink(fresh.c_str());
  UniqueFd fd(::open(fresh.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.valid()) return posix_error("cannot write " + fresh, errno);
  if (const int error = write_all(fd.get(), bytes); error != 0) {
    return posix_error("cannot write " + fresh, error);
  }
  if (::fsync(fd.get()) != 0) return posix_error("cannot write " + fresh, errno);
  // NFS reports a full disk or quota here. Linux frees the descriptor also when close() fails.
  if (::close(fd.release()) != 0 && errno != EINTR) {
    return posix_error("cannot write " + fresh, errno);
  }
  return {};
}

}  // namespace

Status replace_file(const std::string& path, std::string_view bytes) {
  const std::string fresh = path + ".new";
  if (Status written = write_fresh(fresh, bytes); !written.ok()) return written;
  if (::rename(fresh.c_str(), path.c_str()) != 0) {
    return posix_error("cannot replace " + path, errno);
  }
  const int error = sync_parent(path);
  return error == 0 ? Status() : posix_error("cannot replace " + path, error);
}

Result<bool> write_new_file(const std::string& path, std::string_view bytes) {
  const std::string fresh = path + ".new";
  if (Status written = write_fresh(fresh, bytes); !written.ok()) return written;
  const int linked = ::link(fresh.c_str(), path.c_str()) == 0 ? 0 : errno;
  if (linked == EPERM || linked == EOPNOTSUPP || linked == ENOSYS) {  // it has no links
    if (::rename(fresh.c_str(), path.c_str()) != 0) {
      return posix_error("cannot create " + path, errno);
    }
  } else {
    ::unlink(fresh.c_str());
    if (linked == EEXIST) return false;
    if (linked != 0) return posix_error("cannot create " + path, linked);
  }
  const int error = sync_parent(path);
  if (error != 0) return posix_error("cannot create " + path, error);
  return true;
}

bool is_on_network(const std::string& path) {
  constexpr std::uint32_t kLocal[] = {
      0xEF53,      // ext2, ext3, ext4
      0x58465342,  // xfs
      0x9123683E,  // btrfs
      0xF2F52010,  // f2fs
      0x2FC12FC1,  // zfs
      0x01021994,  // tmpfs, also Kubernetes' secrets
      0x858458F6,  // ramfs
      0x794C7630,  // overlayfs
      0x73717368,  // squashfs
      0x9FA0,      // proc
  };
  struct statfs found {};
  if (::statfs(path.c_str(), &found) != 0) return false;
  const auto type = static_cast<std::uint32_t>(found.f_type);
  return std::find(std::begin(kLocal), std::end(kLocal), type) == std::end(kLocal);
}

Duration file_clock_ahead(const std::string& path) {
  if (!is_on_network(path)) return Duration::zero();
  const std::string probe = path + ".clock";
  const Instant before = monotonic_now();
  const UniqueFd fd(
      ::open(probe.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC, 0600));
  if (!fd.valid()) return Duration::zero();
  struct stat found {};
  const bool is_known = ::fstat(fd.get(), &found) == 0;
  const Instant after = monotonic_now();
  ::unlink(probe.c_str());
  if (!is_known) return Duration::zero();
  const std::int64_t stamp =
      std::int64_t{found.st_mtim.tv_sec} * 1'000'000'000 + found.st_mtim.tv_nsec;
  return instant_of_wall_time(stamp) - (before + (after - before) / 2);
}

Status append_to_file(const std::string& path, std::string_view bytes) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  const int error = fd.valid() ? write_all(fd.get(), bytes) : errno;
  return error == 0 ? Status() : posix_error("cannot write " + path, error);
}

Status PrivateFile::fault(const std::string& text) const {
  return {StatusCode::kInvalidArgument, what_ + " " + path_ + " " + text};
}

// Kubernetes mounts a secret with root as its owner, readable by the group of the container.
Status PrivateFile::check(const struct stat& found) const {
  if (!S_ISREG(found.st_mode)) return fault("is not a regular file");
  const uid_t self = ::geteuid();
  if (found.st_uid != self && found.st_uid != 0 && self != 0) {
    return fault("belongs to user " + std::to_string(found.st_uid) +
                 ", and this process runs as user " + std::to_string(self) +
                 ": use a file of your own");
  }
  const mode_t forbidden = found.st_uid == 0 ? 0027 : 0077;
  if ((found.st_mode & forbidden) != 0) {
    return fault("is accessible by other users (mode " + octal(found.st_mode) +
                 "): run chmod 600 " + path_);
  }
  return {};
}

Result<std::optional<std::string>> PrivateFile::read_if_changed(std::size_t bytes_max) {
  struct stat found {};
  const int missing = ::stat(path_.c_str(), &found) == 0 ? 0 : errno;
  if (was_read_ && (missing != 0 ? !seen_ : seen_ && is_same(*seen_, found))) {
    return std::optional<std::string>();
  }
  was_read_ = true;
  seen_.reset();
  if (missing != 0) return fault("cannot be read: " + error_text(missing));
  // Not blocking: the path may be a pipe that has no writer.
  const UniqueFd fd(::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK | O_NOCTTY));
  int error = fd.valid() ? 0 : errno;
  seen_ = found;
  if (error != 0) return fault("cannot be read: " + error_text(error));
  if (::fstat(fd.get(), &found) != 0) return fault("cannot be read: " + error_text(errno));
  seen_ = found;
  if (Status bad = check(found); !bad.ok()) return bad;
  std::string content;
  error = read_whole(fd.get(), bytes_max, &content);
  if (error == EFBIG) return fault("is longer than " + std::to_string(bytes_max) + " bytes");
  if (error != 0) return fault("cannot be read: " + error_text(error));
  return std::optional<std::string>(std::move(content));
}

Result<FileLock> FileLock::acquire(const std::string& path, const WaitLimits& limits) {
  UniqueFd fd(::open(path.c_str(), O_RDWR | O_CREAT | O_CLOEXEC, 0600));
  if (!fd.valid()) return posix_error("cannot open " + path, errno);
  Duration wait = kFirstWait;
  while (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) {
    if (errno != EWOULDBLOCK && errno != EINTR) return posix_error("cannot lock " + path, errno);
    if (monotonic_now() >= limits.deadline) {
      return Status(StatusCode::kDeadlineExceeded,
                    "cannot lock " + path + " before the deadline: another process holds the lock");
    }
    WaitLimits nap = limits;
    nap.deadline = std::min(limits.deadline, monotonic_now() + wait);
    const Status rested = wait_ready(-1, 0, nap);
    if (!rested.ok() && rested.code() != StatusCode::kDeadlineExceeded) return rested;
    wait = std::min(wait * 2, kLongestWait);
  }
  return FileLock(std::move(fd));
}

Status make_directory(const std::string& path) {
  if (::mkdir(path.c_str(), 0755) == 0) return {};
  return posix_error("cannot create the directory " + path, errno);
}

Result<std::string> make_unique_directory(const std::string& parent, std::string_view stem) {
  std::error_code error;
  std::filesystem::create_directories(parent, error);
  if (error) return posix_error("cannot create the directory " + parent, error.value());
  return unique_directory_in(parent, stem);
}

Status create_file(const std::string& path) {
  const UniqueFd fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_EXCL | O_CLOEXEC, 0644));
  if (!fd.valid()) return posix_error("cannot create " + path, errno);
  return {};
}

Result<TemporaryDirectory> TemporaryDirectory::create() {
  const std::string parent = temporary_parent();
  sweep_temporary(parent);
  for (int attempt = 0; attempt < kAttemptsMax; ++attempt) {
    Result<std::string> path = unique_directory_in(parent, temporary_stem());
    if (!path.ok()) return path.status();
    UniqueFd lock;
    const int error = lock_directory(*path, &lock);
    const bool is_swept = error == ENOENT || error == EWOULDBLOCK;
    if (error != 0 && !is_swept) {
      ::rmdir(path->c_str());
      return posix_error("cannot lock " + *path, error);
    }
    struct stat info {};
    // A sweep between the two calls may have removed it, or have locked it in order to remove it.
    const bool is_ours = lock.valid() && ::stat(path->c_str(), &info) == 0;
    if (is_ours) return TemporaryDirectory(*std::move(path), std::move(lock));
  }
  return Status(StatusCode::kInternal, "cannot create a directory in " + parent +
                                           ": other processes removed it repeatedly");
}

TemporaryDirectory::~TemporaryDirectory() {
  if (!path_.empty()) remove_tree(path_);
}

}  // namespace elastic::os
