#include "os/file/rotating_file.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <utility>

#include "os/base/posix_error.h"

// Theory of operation. Before a piece that does not fit, the file is rotated: the older files are
// renamed from the oldest on, the current file gets its second name, and a new file replaces it by
// rename(2), which is atomic.

namespace elastic::os {
namespace {

// A line without an end is split when it exceeds the limit by this.
constexpr std::uint64_t kLineBytesMax = 64 * 1024;
constexpr int kOpenFlags = O_WRONLY | O_APPEND | O_CLOEXEC;

}  // namespace

std::string rotated_path(const std::string& path, int age) {
  return age == 0 ? path : path + "." + std::to_string(age);
}

Result<RotatingFile> RotatingFile::open(std::string path, std::uint64_t bytes_max, int files_max) {
  UniqueFd file(::open(path.c_str(), kOpenFlags));
  if (!file.valid()) return posix_error("cannot open " + path, errno);
  return RotatingFile(std::move(path), bytes_max, files_max, std::move(file));
}

Status RotatingFile::write(std::string_view bytes) {
  int error = 0;
  const bool was_failing = lost_bytes_ > 0;
  if (was_failing) error = put_mark();
  while (error == 0 && !bytes.empty()) {
    const std::size_t size = next_piece(bytes);
    if (size == 0) {
      error = rotate();
      continue;
    }
    const std::uint64_t before = size_;
    error = put(bytes.substr(0, size));
    bytes.remove_prefix(static_cast<std::size_t>(size_ - before));
  }
  lost_bytes_ += bytes.size();
  if (error == 0 || was_failing) return {};
  return posix_error("cannot write " + path_, error);
}

// How many bytes are written before the next rotation; 0: rotate first.
std::size_t RotatingFile::next_piece(std::string_view bytes) const {
  const std::uint64_t room = size_ < bytes_max_ ? bytes_max_ - size_ : 0;
  if (bytes.size() <= room) return bytes.size();
  const std::size_t last = bytes.substr(0, static_cast<std::size_t>(room)).rfind('\n');
  if (last != std::string_view::npos) return last + 1;
  if (size_ > 0 && !is_in_line_) return 0;
  // The file ends inside a line, or the line alone exceeds the limit.
  if (size_ >= bytes_max_ + kLineBytesMax) return 0;
  const std::size_t rest = static_cast<std::size_t>(bytes_max_ + kLineBytesMax - size_);
  const std::size_t end = bytes.substr(0, rest).find('\n');
  return end == std::string_view::npos ? std::min(rest, bytes.size()) : end + 1;
}

// Returns an errno, or 0. size_ tells how much was written.
int RotatingFile::put(std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t put = ::write(file_.get(), bytes.data(), bytes.size());
    if (put < 0 && errno == EINTR) continue;
    if (put <= 0) return put < 0 ? errno : ENOSPC;
    is_in_line_ = bytes[static_cast<std::size_t>(put) - 1] != '\n';
    size_ += static_cast<std::uint64_t>(put);
    bytes.remove_prefix(static_cast<std::size_t>(put));
  }
  return 0;
}

int RotatingFile::put_mark() {
  const std::string mark = std::string(is_in_line_ ? "\n" : "") +
                           "[elastic-launch: " + std::to_string(lost_bytes_) +
                           " bytes could not be written here]\n";
  const std::uint64_t before = size_;
  const int error = put(mark);
  // A part of the mark is no mark.
  if (error != 0 && size_ > before && ::ftruncate(file_.get(), static_cast<off_t>(before)) == 0) {
    size_ = before;
  }
  if (error == 0) lost_bytes_ = 0;
  return error;
}

int RotatingFile::rotate() {
  const std::string fresh = path_ + ".new";
  UniqueFd file(::open(fresh.c_str(), kOpenFlags | O_CREAT | O_TRUNC, 0644));
  if (!file.valid()) return errno;
  for (int age = files_max_ - 1; age > 1; --age) {
    ::rename(rotated_path(path_, age - 1).c_str(), rotated_path(path_, age).c_str());
  }
  if (files_max_ > 1) {
    const std::string newest = rotated_path(path_, 1);
    ::unlink(newest.c_str());  // with two files it was not renamed
    // A file system without hard links: the name is missing until the rename below.
    if (::link(path_.c_str(), newest.c_str()) != 0) ::rename(path_.c_str(), newest.c_str());
  }
  if (::rename(fresh.c_str(), path_.c_str()) != 0) return errno;
  file_ = std::move(file);
  size_ = 0;
  is_in_line_ = false;
  return 0;
}

}  // namespace elastic::os
