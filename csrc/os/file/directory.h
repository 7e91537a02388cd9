#pragma once

// Directories for the files of a run.

#include <string>
#include <string_view>
#include <utility>

#include "elastic/status.h"
#include "os/base/fd.h"

namespace elastic::os {

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
