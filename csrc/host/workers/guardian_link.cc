#include "host/workers/guardian_link.h"

#include <dlfcn.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstring>
#include <filesystem>
#include <utility>
#include <vector>

#include "os/base/posix_error.h"
#include "os/loop/clock.h"
#include "os/process/process_tree.h"

namespace elastic::host {
namespace {

constexpr Duration kCleanersTime = std::chrono::seconds(3);  // torch_shm_manager waits two seconds

constexpr const char* kName = "elastic-guardian";

// The shared object or program that this function was linked into.
std::filesystem::path own_file() {
  Dl_info info{};
  if (::dladdr(reinterpret_cast<const void*>(&own_file), &info) == 0 || info.dli_fname == nullptr) {
    return {};
  }
  std::error_code error;
  auto path = std::filesystem::canonical(info.dli_fname, error);
  // For the main program dladdr gives argv[0], which need not be a path from here.
  if (error) path = std::filesystem::canonical("/proc/self/exe", error);
  return error ? std::filesystem::path() : path;
}

}  // namespace

Result<std::string> find_guardian(const std::string& option) {
  std::vector<std::filesystem::path> places;
  if (!option.empty()) {
    places.emplace_back(option);
  } else {
    const std::filesystem::path folder = own_file().parent_path();
    places.push_back(folder / "bin" / kName);
    places.push_back(folder / ".." / ELASTIC_LIBEXEC_FROM_LIB / "elastic" / kName);
    places.push_back(std::filesystem::path(ELASTIC_LIBEXEC_INSTALLED) / "elastic" / kName);
  }
  std::string tried;
  for (const auto& place : places) {
    if (::access(place.c_str(), X_OK) == 0) return place.lexically_normal().string();
    tried += (tried.empty() ? "" : ", ") + place.lexically_normal().string();
  }
  return Status(StatusCode::kNotFound, "cannot find the guardian program (tried " + tried +
                                           "); reinstall elastic, or name it in guardian_path; for "
                                           "a program of PyInstaller add --collect-all elastic");
}

ssize_t UnsentRequests::send_some(int socket) {
  const bool is_passing = !passed.empty() && passed.front().offset == begin;
  const std::size_t next = is_passing ? 1 : 0;
  const std::size_t end = passed.size() > next ? passed[next].offset : bytes.size();
  iovec data{bytes.data() + begin, end - begin};
  alignas(cmsghdr) char control[CMSG_SPACE(sizeof(int))] = {};
  msghdr message{};
  message.msg_iov = &data;
  message.msg_iovlen = 1;
  if (is_passing) {
    message.msg_control = control;
    message.msg_controllen = sizeof control;
    cmsghdr* const header = CMSG_FIRSTHDR(&message);
    header->cmsg_level = SOL_SOCKET;
    header->cmsg_type = SCM_RIGHTS;
    header->cmsg_len = CMSG_LEN(sizeof(int));
    const int descriptor = passed.front().descriptor;
    std::memcpy(CMSG_DATA(header), &descriptor, sizeof descriptor);
  }
  const ssize_t put = ::sendmsg(socket, &message, MSG_NOSIGNAL);
  if (put <= 0) return put;
  if (is_passing) passed.pop_front();
  begin += static_cast<std::size_t>(put);
  if (begin == bytes.size()) clear();
  return put;
}

namespace {

Status check_command(const WorkerCommand& command, const std::string& who) {
  if (command.argv.empty() || command.argv[0].empty()) {
    return {StatusCode::kInvalidArgument, who + "its command is empty"};
  }
  if (guardian::contains_nul(command)) {
    return {StatusCode::kInvalidArgument, who + "an argument or variable contains a NUL"};
  }
  const bool are_cpus = std::all_of(command.cpus.begin(), command.cpus.end(),
                                    [](std::uint32_t cpu) { return cpu < guardian::kCpusMax; });
  if (!are_cpus || command.cpus.size() > guardian::kCpusMax) {
    return {StatusCode::kInvalidArgument,
            who + "its CPUs must be at most " + std::to_string(guardian::kCpusMax) +
                " numbers below " + std::to_string(guardian::kCpusMax)};
  }
  return {};
}

Status check_size(const StartOrder& order, const WorkerCommand& command, const std::string& who) {
  if (order.request.size() <= guardian::kFrameBytesMax &&
      command.argv.size() <= guardian::kListItemsMax &&
      command.env.size() <= guardian::kListItemsMax) {
    return {};
  }
  return {StatusCode::kInvalidArgument, who + "its arguments and environment are too long"};
}

}  // namespace

Result<std::vector<StartOrder>> encode_starts(const std::vector<WorkerCommand>& commands,
                                              std::vector<WorkerStream> streams,
                                              guardian::StartKind kind, Duration template_wait) {
  if (commands.empty()) {
    return Status(StatusCode::kInvalidArgument, "cannot start workers: the list is empty");
  }
  std::vector<StartOrder> orders(commands.size());
  streams.resize(commands.size());
  for (std::size_t i = 0; i < commands.size(); ++i) {
    const WorkerCommand& command = commands[i];
    const std::string who = "cannot start worker " + std::to_string(i) + ": ";
    if (Status status = check_command(command, who); !status.ok()) return status;
    std::uint8_t passed = 0;
    if (streams[i].descriptor.valid()) {
      passed = guardian::kPassedStderr;
      if (streams[i].is_stdout) passed |= guardian::kPassedStdout;
    }
    orders[i].stream = std::move(streams[i].descriptor);
    guardian::append_start(&orders[i].request, static_cast<std::uint32_t>(i), command,
                           guardian::Lifetime::kWorker, passed, kind, template_wait);
    if (Status status = check_size(orders[i], command, who); !status.ok()) return status;
  }
  return orders;
}

Result<StartOrder> encode_helper(std::uint32_t id, const WorkerCommand& command,
                                 os::UniqueFd stream) {
  const std::string who = "it cannot be started: ";
  if (Status status = check_command(command, who); !status.ok()) return status;
  StartOrder order;
  order.stream = std::move(stream);
  guardian::append_start(&order.request, id, command, guardian::Lifetime::kHelper,
                         guardian::kPassedStdout | guardian::kPassedStderr);
  if (Status status = check_size(order, command, who); !status.ok()) return status;
  return order;
}

Status append_continue(std::string* out, std::uint64_t round,
                       const std::vector<std::vector<std::string>>& env, std::size_t workers) {
  if (env.size() != workers) {
    return {StatusCode::kInvalidArgument, "cannot continue " + std::to_string(workers) +
                                              " workers with the variables of " +
                                              std::to_string(env.size())};
  }
  for (std::size_t i = 0; i < workers; ++i) {
    const std::string who = "cannot continue worker " + std::to_string(i) + ": ";
    std::size_t bytes = 0;
    for (const std::string& item : env[i]) {
      bytes += item.size() + 1;
      if (item.find('\0') != item.npos) {
        return {StatusCode::kInvalidArgument, who + "a variable contains a NUL"};
      }
    }
    if (bytes == 0 || bytes > guardian::kRoundEnvBytesMax) {
      return {StatusCode::kInvalidArgument,
              who + "its variables are " + (bytes == 0 ? "missing" : "too long")};
    }
  }
  for (std::size_t i = 0; i < workers; ++i) {
    const auto id = static_cast<std::uint32_t>(i);
    guardian::append_request(out,
                             guardian::ContinueRequest{id, round, {env[i].begin(), env[i].end()}});
  }
  return {};
}

Result<OrphanSweep> OrphanSweep::prepare(const std::string& guardian_path) {
  OrphanSweep sweep(guardian_path);
  if (!os::list_children(&sweep.before_)) {
    return Status(StatusCode::kUnavailable, "cannot list this process's children: no /proc");
  }
  if (::prctl(PR_SET_CHILD_SUBREAPER, 1) != 0) {
    return os::posix_error("cannot become a subreaper", errno);
  }
  return sweep;
}

std::vector<pid_t> OrphanSweep::kill_once() {
  std::vector<pid_t> children;
  os::list_children(&children);
  std::vector<pid_t> orphans;
  const Instant now = os::monotonic_now();
  for (const pid_t child : children) {
    if (!is_orphan(child)) continue;
    orphans.push_back(child);
    const bool is_cleaner = os::cleaner_of(child) != os::Cleaner::kNone;
    if (!is_cleaner || !cleaners_end_) cleaners_end_ = now + kCleanersTime;
    if (!is_cleaner || now >= *cleaners_end_) ::kill(child, SIGKILL);
    ::waitpid(child, nullptr, WNOHANG);
  }
  return orphans;
}

bool OrphanSweep::is_orphan(pid_t pid) const {
  if (::getsid(pid) == ::getsid(0)) return false;
  if (std::find(before_.begin(), before_.end(), pid) != before_.end()) return false;
  struct stat running {};
  struct stat guardian {};
  const std::string program = "/proc/" + std::to_string(pid) + "/exe";
  const bool is_guardian = ::stat(program.c_str(), &running) == 0 &&
                           ::stat(guardian_path_.c_str(), &guardian) == 0 &&
                           running.st_dev == guardian.st_dev && running.st_ino == guardian.st_ino;
  return !is_guardian;
}

}  // namespace elastic::host
