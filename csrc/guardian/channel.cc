#include "guardian/channel.h"

#include <fcntl.h>
#include <linux/futex.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <sys/stat.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstdlib>
#include <cstring>
#include <string_view>
#include <utility>

#include "os/process/process_tree.h"

namespace elastic::guardian {
namespace {

constexpr int kSeals = F_SEAL_SEAL | F_SEAL_SHRINK | F_SEAL_GROW;

// Messages are rare. A worker that floods the socket loses it.
constexpr int kMessagesMax = 100000;
constexpr int kMessagesAtOnce = 64;

// Channels use half of the descriptors: the starts of workers need the others.
bool is_scarce(int descriptor) {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0 || limit.rlim_cur == RLIM_INFINITY) return false;
  return static_cast<rlim_t>(descriptor) > limit.rlim_cur / 2;
}

bool identify(int descriptor, std::uint64_t* device, std::uint64_t* inode) {
  struct stat found {};
  if (::fstat(descriptor, &found) != 0) return false;
  *device = found.st_dev;
  *inode = found.st_ino;
  return true;
}

template <typename T>
T load(const T* word) {
  return __atomic_load_n(word, __ATOMIC_SEQ_CST);
}

// A worker may have written any negative number.
std::int64_t load_step(const std::int64_t* word) {
  return std::max<std::int64_t>(load(word), ELASTIC_WORKER_NO_STEP);
}

// Limits above it have no meaning, and must not overflow.
constexpr std::int64_t kSectionLimitMaxMs = 1'000'000'000;

constexpr std::size_t kStacksBytes = ELASTIC_WORKER_BYTES - ELASTIC_WORKER_STACKS_OFFSET;

std::string packet(char kind, std::uint64_t round) {
  std::string bytes(1, kind);
  bytes.append(reinterpret_cast<const char*>(&round), sizeof round);
  return bytes;
}

bool has_handler(pid_t pid, int number) {
  std::string status;
  constexpr std::string_view kName = "\nSigCgt:";
  if (!os::read_proc_file("/proc/" + std::to_string(pid) + "/status", &status)) return false;
  const std::size_t line = status.find(kName);
  if (line == status.npos) return false;
  const auto mask = std::strtoull(status.c_str() + line + kName.size(), nullptr, 16);
  return (mask >> (number - 1) & 1) != 0;
}

}  // namespace

void Channel::Unmap::operator()(elastic_worker_page* page) const {
  ::munmap(page, ELASTIC_WORKER_BYTES);
}

Channel Channel::create() {
  Channel channel;
  channel.memory_.reset(::memfd_create("elastic-channel", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  if (!channel.memory_.valid() || ::ftruncate(channel.memory_.get(), ELASTIC_WORKER_BYTES) != 0 ||
      ::fcntl(channel.memory_.get(), F_ADD_SEALS, kSeals) != 0) {
    return {};
  }
  int ends[2];
  if (::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends) != 0) return {};
  channel.socket_.reset(ends[0]);
  channel.worker_socket_.reset(ends[1]);
  const int yes = 1;
  if (is_scarce(ends[1]) || ::fcntl(ends[0], F_SETFL, O_NONBLOCK) != 0 ||
      ::setsockopt(ends[0], SOL_SOCKET, SO_PASSCRED, &yes, sizeof yes) != 0) {
    return {};
  }
  worker::ChannelName name;
  name.memory = channel.memory_.get();
  name.socket = ends[1];
  if (!identify(name.memory, &name.memory_device, &name.memory_inode) ||
      !identify(name.socket, &name.socket_device, &name.socket_inode)) {
    return {};
  }
  void* const mapped = ::mmap(nullptr, ELASTIC_WORKER_BYTES, PROT_READ | PROT_WRITE, MAP_SHARED,
                              channel.memory_.get(), 0);
  if (mapped == MAP_FAILED) return {};
  auto* const page = static_cast<elastic_worker_page*>(mapped);
  page->magic = ELASTIC_WORKER_MAGIC;
  page->layout = ELASTIC_WORKER_LAYOUT;
  page->bytes = ELASTIC_WORKER_BYTES;
  page->tentative_stop = page->committed_stop = ELASTIC_WORKER_NO_STEP;
  page->step = page->stopped_at = ELASTIC_WORKER_NO_STEP;
  page->first_step = page->waits_at = ELASTIC_WORKER_NO_STEP;
  channel.page_.reset(page);
  channel.messages_left_ = kMessagesMax;
  char text[worker::kNameBytesMax];
  worker::format(name, text);
  std::memcpy(channel.variable_.data(), text, sizeof text);
  return channel;
}

WorkerProgress Channel::progress() const {
  WorkerProgress found;
  found.step = step();
  found.sections = load(&page_->section_sequence);
  found.in_section = load(&page_->section_depth) != 0;
  if (!found.in_section) return found;
  const std::int64_t limit = load(&page_->section_limit_ms);
  found.section_limit =
      std::chrono::milliseconds(std::clamp<std::int64_t>(limit, 0, kSectionLimitMaxMs));
  for (std::size_t i = 0; i + 1 < sizeof page_->section; ++i) {
    const char byte = load(&page_->section[i]);
    if (byte == '\0') break;
    found.section.push_back(byte >= ' ' && byte <= '~' ? byte : '?');
  }
  const bool is_whole = found.sections % 2 == 0 && load(&page_->section_sequence) == found.sections;
  if (!is_whole) found.section.clear();
  return found;
}

std::int64_t Channel::step() const { return load_step(&page_->step); }

std::int64_t Channel::own_step() const {
  return load(&page_->is_counted) != 0 ? ELASTIC_WORKER_NO_STEP : step();
}

// A program that was linked with an earlier library does not write the first step.
std::int64_t Channel::first_step() const {
  const std::int64_t first = load_step(&page_->first_step);
  return first < 0 ? step() : first;
}

std::int64_t Channel::stopped_at() const { return load_step(&page_->stopped_at); }

std::optional<Instant> Channel::waits_since() const {
  const std::int64_t since = load(&page_->waits_since);
  if (since <= 0) return std::nullopt;
  return Instant(std::chrono::nanoseconds(since));
}

std::int64_t Channel::waits_at() const { return load_step(&page_->waits_at); }

void Channel::set_tentative_stop(std::int64_t step) {
  __atomic_store_n(&page_->committed_stop, ELASTIC_WORKER_NO_STEP, __ATOMIC_SEQ_CST);
  __atomic_store_n(&page_->tentative_stop, step, __ATOMIC_SEQ_CST);
  wake_stopping_worker();
}

void Channel::commit_stop() {
  __atomic_store_n(&page_->committed_stop, load(&page_->tentative_stop), __ATOMIC_SEQ_CST);
  wake_stopping_worker();
}

void Channel::set_stop_reason(std::string_view text) {
  const std::uint32_t sequence = load(&page_->stop_reason_sequence) | 1U;
  __atomic_store_n(&page_->stop_reason_sequence, sequence, __ATOMIC_SEQ_CST);
  std::memset(page_->stop_reason, 0, sizeof page_->stop_reason);
  std::memcpy(page_->stop_reason, text.data(),
              std::min(text.size(), sizeof page_->stop_reason - 1));
  __atomic_store_n(&page_->stop_reason_sequence, sequence + 1, __ATOMIC_SEQ_CST);
}

void Channel::wake_stopping_worker() {
  __atomic_fetch_add(&page_->stop_sequence, 1, __ATOMIC_SEQ_CST);
  ::syscall(SYS_futex, &page_->stop_sequence, FUTEX_WAKE, INT_MAX, nullptr, nullptr, 0);
}

// A process that has claimed the channel since may have written the word, too.
bool Channel::has_left(std::uint64_t round) const {
  return is_member_ && load(&page_->left_round) == round + 1;
}

bool Channel::waits_for_first_round() const {
  return is_member_ && load(&page_->left_round) == ELASTIC_WORKER_NO_ROUND;
}

bool Channel::send_cut(std::uint64_t round) { return send(packet(worker::kCut, round)); }

bool Channel::send_round(std::uint64_t round, const std::vector<std::string_view>& env) {
  read_messages();  // of the earlier round
  is_reporting_ = false;
  set_tentative_stop(ELASTIC_WORKER_NO_STEP);
  set_stop_reason("");
  // The worker's words: it is in no round, and clears them itself only when it takes this one.
  __atomic_store_n(&page_->step, ELASTIC_WORKER_NO_STEP, __ATOMIC_SEQ_CST);
  __atomic_store_n(&page_->stopped_at, ELASTIC_WORKER_NO_STEP, __ATOMIC_SEQ_CST);
  __atomic_store_n(&page_->waits_at, ELASTIC_WORKER_NO_STEP, __ATOMIC_SEQ_CST);
  __atomic_store_n(&page_->is_counted, 0U, __ATOMIC_SEQ_CST);
  std::string bytes = packet(worker::kNewRound, round);
  for (const std::string_view item : env) bytes.append(item).push_back('\0');
  if (send(bytes)) return true;
  socket_.reset();
  return false;
}

// A worker that does not read its socket never delays the guardian.
bool Channel::send(const std::string& packet) {
  return socket_.valid() &&
         ::send(socket_.get(), packet.data(), packet.size(), MSG_DONTWAIT | MSG_NOSIGNAL) >= 0;
}

bool Channel::request_stacks(pid_t session) {
  stacks_before_ = load(&page_->stacks_written);
  const auto number = static_cast<int>(load(&page_->stacks_signal) & 0xff);
  // A worker of another process, or one that has executed another program since.
  if (owner_ <= 0 || number < SIGRTMIN || number > SIGRTMAX) return false;
  if (::getsid(owner_) != session || !has_handler(owner_, number)) return false;
  std::memset(stacks_area(), 0, kStacksBytes);
  // The worker's descriptor shares its offset with this one.
  if (::lseek(memory_.get(), ELASTIC_WORKER_STACKS_OFFSET, SEEK_SET) < 0) return false;
  return ::kill(owner_, number) == 0;
}

bool Channel::has_stacks() const { return load(&page_->stacks_written) != stacks_before_; }

std::string Channel::stacks() const { return text_at(ELASTIC_WORKER_STACKS_OFFSET, kStacksBytes); }

std::string Channel::collectives() const {
  return unchanged_text_at(ELASTIC_WORKER_COLLECTIVES_OFFSET, ELASTIC_WORKER_COLLECTIVES_BYTES,
                           &page_->collectives_sequence);
}

std::string Channel::groups() const {
  return unchanged_text_at(ELASTIC_WORKER_GROUPS_OFFSET, ELASTIC_WORKER_GROUPS_BYTES,
                           &page_->groups_sequence);
}

std::string Channel::signatures() const {
  return unchanged_text_at(ELASTIC_WORKER_SIGNATURES_OFFSET, ELASTIC_WORKER_SIGNATURES_BYTES,
                           &page_->signatures_sequence);
}

std::uint32_t Channel::signatures_sequence() const { return load(&page_->signatures_sequence); }

std::string Channel::text_at(std::size_t offset, std::size_t size) const {
  std::string text(reinterpret_cast<const char*>(page_.get()) + offset, size);
  text.resize(std::min(text.find('\0'), text.size()));
  return text;
}

std::string Channel::unchanged_text_at(std::size_t offset, std::size_t size,
                                       const std::uint32_t* sequence) const {
  const std::uint32_t before = load(sequence);
  if (before % 2 != 0) return "";
  std::string text = text_at(offset, size);
  return load(sequence) == before ? text : "";
}

char* Channel::stacks_area() const {
  return reinterpret_cast<char*>(page_.get()) + ELASTIC_WORKER_STACKS_OFFSET;
}

void Channel::read_messages() {
  for (int i = 0; i < kMessagesAtOnce && socket_.valid(); ++i) {
    char message = '\0';
    auto received =
        receive_message<ucred>(socket_.get(), &message, sizeof message, SCM_CREDENTIALS);
    if (received.bytes < 0 && (errno == EAGAIN || errno == EINTR)) return;
    if (received.bytes <= 0 || --messages_left_ <= 0) return socket_.reset();
    if (message == worker::kReporting) is_reporting_ = true;
    if (message == worker::kMember) is_member_ = true;
    if (message == worker::kSnapshots) passed_ = std::move(received.file);
    if (message == worker::kWatching) is_watching_ = true;
    if (message == worker::kRaised) has_raised_ = true;
    if (message != worker::kOpened || !received.ancillary) continue;
    if (std::exchange(owner_, received.ancillary->pid) != 0) is_member_ = false;
  }
}

}  // namespace elastic::guardian
