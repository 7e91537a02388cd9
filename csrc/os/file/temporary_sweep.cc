#include "os/file/temporary_sweep.h"

#include <dirent.h>
#include <fcntl.h>
#include <ftw.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/utsname.h>
#include <unistd.h>

#include <cctype>
#include <cstdio>
#include <cstdlib>
#include <memory>
#include <string_view>

namespace elastic::os {
namespace {

constexpr int kOpenDirectoriesMax = 16;
// The first part of the kernel's random id of this boot.
constexpr int kBootIdBytes = 8;

int remove_entry(const char* path, const struct stat*, int, FTW*) {
  std::remove(path);
  return 0;
}

}  // namespace

std::string temporary_parent() {
  const char* chosen = std::getenv("TMPDIR");
  return chosen != nullptr && *chosen != '\0' ? chosen : "/tmp";
}

std::string temporary_stem() {
  utsname system{};
  std::string host = ::uname(&system) == 0 ? system.nodename : "";
  for (char& c : host) {
    if (std::isalnum(static_cast<unsigned char>(c)) == 0 && c != '.') c = '-';
  }
  char boot[kBootIdBytes] = {};
  const UniqueFd file(::open("/proc/sys/kernel/random/boot_id", O_RDONLY | O_CLOEXEC));
  const bool is_known = file.valid() && ::read(file.get(), boot, sizeof boot) == sizeof boot;
  return "elastic-run_" + host + "_" + (is_known ? std::string(boot, sizeof boot) : "0");
}

int lock_directory(const std::string& path, UniqueFd* lock) {
  UniqueFd fd(::open(path.c_str(), O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC));
  if (!fd.valid() || ::flock(fd.get(), LOCK_EX | LOCK_NB) != 0) return errno;
  *lock = std::move(fd);
  return 0;
}

// Not std::filesystem: it would be a third of the guardian.
void remove_tree(const std::string& path) {
  ::nftw(path.c_str(), remove_entry, kOpenDirectoriesMax, FTW_DEPTH | FTW_PHYS);
}

void sweep_temporary(const std::string& parent) {
  const std::unique_ptr<DIR, int (*)(DIR*)> entries(::opendir(parent.c_str()), ::closedir);
  if (entries == nullptr) return;
  const std::string stem = temporary_stem() + "_";
  while (const dirent* entry = ::readdir(entries.get())) {
    if (!std::string_view(entry->d_name).starts_with(stem)) continue;
    const std::string path = parent + "/" + entry->d_name;
    struct stat info {};
    if (::lstat(path.c_str(), &info) != 0 || info.st_uid != ::geteuid()) continue;
    UniqueFd lock;
    if (lock_directory(path, &lock) == 0) remove_tree(path);
  }
}

}  // namespace elastic::os
