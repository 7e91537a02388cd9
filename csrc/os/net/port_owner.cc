#include "os/net/port_owner.h"

#include <dirent.h>
#include <sys/types.h>
#include <unistd.h>

#include <algorithm>
#include <cctype>
#include <cinttypes>
#include <cstdio>
#include <fstream>
#include <iterator>
#include <memory>
#include <vector>

// Theory of operation. /proc/net/tcp and tcp6 list each socket with its port and its inode. A
// process with an open socket has a link "socket:[inode]" in /proc/<pid>/fd.

namespace elastic::os {
namespace {

constexpr unsigned kStateListen = 0x0A;
constexpr std::size_t kCommandLineShown = 80;

// The inodes of the sockets that listen on `port`.
std::vector<std::uint64_t> listening_inodes(std::uint16_t port) {
  std::vector<std::uint64_t> inodes;
  for (const char* path : {"/proc/net/tcp", "/proc/net/tcp6"}) {
    std::ifstream table(path);
    std::string line;
    std::getline(table, line);  // the heading
    while (std::getline(table, line)) {
      unsigned local_port = 0;
      unsigned state = 0;
      std::uint64_t inode = 0;
      const int fields = std::sscanf(
          line.c_str(), " %*u: %*[0-9A-Fa-f]:%x %*[0-9A-Fa-f]:%*x %x %*s %*s %*s %*u %*u %" SCNu64,
          &local_port, &state, &inode);
      if (fields == 3 && local_port == port && state == kStateListen) inodes.push_back(inode);
    }
  }
  return inodes;
}

std::vector<std::string> entries(const std::string& directory) {
  std::vector<std::string> names;
  const std::unique_ptr<DIR, int (*)(DIR*)> dir(::opendir(directory.c_str()), &::closedir);
  while (const dirent* entry = dir == nullptr ? nullptr : ::readdir(dir.get())) {
    if (entry->d_name[0] != '.') names.emplace_back(entry->d_name);
  }
  return names;
}

bool has_socket(const std::string& pid, const std::vector<std::uint64_t>& inodes) {
  const std::string directory = "/proc/" + pid + "/fd/";
  for (const std::string& name : entries(directory)) {
    char target[64];
    const ssize_t size = ::readlink((directory + name).c_str(), target, sizeof target - 1);
    if (size <= 0) continue;
    target[size] = '\0';
    std::uint64_t inode = 0;
    if (std::sscanf(target, "socket:[%" SCNu64 "]", &inode) != 1) continue;
    if (std::find(inodes.begin(), inodes.end(), inode) != inodes.end()) return true;
  }
  return false;
}

std::string command_of(const std::string& pid) {
  std::ifstream file("/proc/" + pid + "/cmdline", std::ios::binary);
  std::string command{std::istreambuf_iterator<char>(file), {}};
  while (!command.empty() && command.back() == '\0') command.pop_back();
  // Arguments end in NUL. Control characters must not get into a message.
  std::replace_if(
      command.begin(), command.end(), [](unsigned char c) { return std::iscntrl(c) != 0; }, ' ');
  if (command.size() > kCommandLineShown) command = command.substr(0, kCommandLineShown) + "...";
  return command;
}

}  // namespace

std::string describe_port_owner(std::uint16_t port) {
  const std::vector<std::uint64_t> inodes = listening_inodes(port);
  if (inodes.empty()) return "";
  for (const std::string& name : entries("/proc")) {
    if (std::isdigit(static_cast<unsigned char>(name[0])) == 0) continue;
    if (has_socket(name, inodes)) return "pid " + name + " (" + command_of(name) + ")";
  }
  return "";
}

}  // namespace elastic::os
