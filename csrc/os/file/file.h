#pragma once

// Files and directories that this process owns: it reads and replaces whole files and adds to them,
// checks files with secrets, locks files against other processes, and creates directories. Every
// call may block on the file system.

#include <sys/stat.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>

#include "elastic/status.h"
#include "os/base/fd.h"
#include "os/loop/wait.h"

namespace elastic::os {

// The content of the file; nullopt: it does not exist. kResourceExhausted: it has more than
// `bytes_max`.
Result<std::optional<std::string>> read_file(const std::string& path, std::size_t bytes_max);

// Replaces the file atomically, or creates it (mode 0600): readers find the old or the new content,
// also after a crash of the host. Blocks on the disk. Uses <path>.new as a temporary file.
Status replace_file(const std::string& path, std::string_view bytes);

// Creates the file with this content, which survives a crash of the host; false: it exists. The
// server of a network file system decides that, and not what this host remembers of the directory.
// Where hard links are not supported the file is replaced. Uses <path>.new as a temporary file.
Result<bool> write_new_file(const std::string& path, std::string_view bytes);

// Adds the bytes at the end of the file, or creates it (mode 0644, less the umask).
Status append_to_file(const std::string& path, std::string_view bytes);

// A file with secrets: it is used only if other users can neither read nor replace its content, and
// is read again when it has changed. One thread at a time.
class PrivateFile {
 public:
  // `what`: the file in messages, "the token file".
  PrivateFile(std::string what, std::string path)
      : what_(std::move(what)), path_(std::move(path)) {}

  // The content if this is the first call or the file has changed since the last one; else nullopt.
  // A fault is reported again only after another change. kInvalidArgument: the file is missing,
  // unreadable, accessible by others, or has more than `bytes_max`.
  Result<std::optional<std::string>> read_if_changed(std::size_t bytes_max);

 private:
  Status check(const struct stat& found) const;
  Status fault(const std::string& text) const;

  const std::string what_;
  const std::string path_;
  std::optional<struct stat> seen_;  // nullopt: no file was found
  bool was_read_ = false;
};

// A lock between processes, also on several hosts with a shared file system. It is held while the
// object lives; the kernel releases it when the process ends for any reason.
class FileLock {
 public:
  // Locks the file; creates it (mode 0600) if it does not exist, and never removes it. Errors: of
  // the file system, and the errors of the limits.
  static Result<FileLock> acquire(const std::string& path, const WaitLimits& limits);

 private:
  explicit FileLock(UniqueFd fd) : fd_(std::move(fd)) {}
  UniqueFd fd_;  // open, and locked by flock(2)
};

// Whether a system call on the file may wait for another host: it is on a file system that is not
// known to be local. False also if that cannot be found out.
bool is_on_network(const std::string& path);

// How far the clock that stamps files beside `path` is ahead of this host's: that of the file
// server on a network file system, else zero. Creates <path>.clock for a moment. Zero also if it
// cannot.
Duration file_clock_ahead(const std::string& path);

// Creates one directory, which must not exist (mode 0755 as the umask allows).
Status make_directory(const std::string& path);

// Creates <parent>/<stem>_<random> (mode 0700), and `parent` if it is missing. Returns the absolute
// path.
Result<std::string> make_unique_directory(const std::string& parent, std::string_view stem);

// Creates an empty file (mode 0644 as the umask allows), which must not exist.
Status create_file(const std::string& path);

// A directory in $TMPDIR (or /tmp), which must exist; the destructor removes it and its content.
//
// It is locked while the object lives. Creating one also removes the unlocked directories of this
// user, which processes that were killed have left behind.
class TemporaryDirectory {
 public:
  static Result<TemporaryDirectory> create();
  TemporaryDirectory(TemporaryDirectory&& other) noexcept
      : path_(std::exchange(other.path_, {})), lock_(std::move(other.lock_)) {}
  TemporaryDirectory& operator=(TemporaryDirectory&&) = delete;
  ~TemporaryDirectory();

  const std::string& path() const { return path_; }

 private:
  TemporaryDirectory(std::string path, UniqueFd lock)
      : path_(std::move(path)), lock_(std::move(lock)) {}
  std::string path_;
  UniqueFd lock_;  // the open directory, locked by flock(2): the kernel unlocks it if we are killed
};

}  // namespace elastic::os
