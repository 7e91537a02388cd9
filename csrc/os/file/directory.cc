#include "os/file/directory.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <cstdlib>
#include <filesystem>
#include <system_error>

#include "os/base/posix_error.h"
#include "os/file/temporary_sweep.h"

namespace elastic::os {
namespace {

// Another process may remove a new directory before it is locked; give up after this many attempts.
constexpr int kAttemptsMax = 10;

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
    UniqueFd lock = lock_directory(*path);
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
