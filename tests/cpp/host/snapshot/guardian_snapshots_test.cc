// What the guardian keeps of a rank's snapshots: with real workers that are killed while they save,
// and with a test in place of a worker that offers what no worker does.

#include "guardian/snapshots.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <algorithm>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <string>
#include <utility>
#include <vector>

#include "elastic/worker.h"
#include "elastic/worker_snapshot.h"
#include "guardian/channel.h"
#include "host/workers/forked_worker.h"

namespace elastic::guardian {
namespace {

using snapshot::kPage;
using support::ForkedWorker;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using worker::SnapshotKind;
using worker::SnapshotPacket;

// ---- What a worker does, in a forked process.

constexpr std::size_t kDataPages = 6;
constexpr std::size_t kFilePages = 2 + kDataPages;  // header, index, data
char state[kDataPages * kPage];

bool save(int step) {
  std::memset(state, step, sizeof state);
  const elastic_snapshot_part part{state, sizeof state, ELASTIC_SNAPSHOT_BYTES};
  return elastic_snapshot_save(step, &part, 1) == 1;
}

bool open_worker() {
  return ::setenv("RANK", "0", 1) == 0 && ::setenv("WORLD_SIZE", "1", 1) == 0 &&
         elastic_worker_open() == 1;
}

// The step from which it continues, if each byte is of it; 0: none. Above 100: an error.
int restore() {
  std::int64_t step = 0;
  const elastic_snapshot_part* parts = nullptr;
  std::size_t count = 0;
  if (!open_worker()) return 101;
  const int found = elastic_snapshot_restore(&step, &parts, &count);
  if (found == 0) return 0;
  if (found < 0 || count != 1 || parts[0].bytes != sizeof state) return 102;
  const char* const bytes = static_cast<const char*>(parts[0].data);
  const bool is_whole =
      std::all_of(bytes, bytes + sizeof state, [&](char one) { return one == step; });
  return is_whole ? static_cast<int>(step) : 103;
}

// Where this process has mapped the file of the snapshot after `step`.
char* file_of(int step) {
  std::FILE* const maps = std::fopen("/proc/self/maps", "r");
  char line[512];
  char* found = nullptr;
  while (found == nullptr && std::fgets(line, sizeof line, maps) != nullptr) {
    if (std::strstr(line, "memfd:elastic-snapshot") == nullptr) continue;
    char* const bytes = reinterpret_cast<char*>(std::strtoull(line, nullptr, 16));
    snapshot::Header header;
    std::memcpy(&header, bytes, sizeof header);
    if (header.step == step) found = bytes;
  }
  std::fclose(maps);
  return found;
}

// How far a save comes before its process is killed.
enum class Until { kFirstWrite, kAllButComplete, kCompleteWithoutMessage };
struct Trap {
  char* file = nullptr;
  std::size_t page = 0;  // the first write to it is not done
  Until until = Until::kFirstWrite;
};
Trap trap;

void set_page(std::size_t page, int protection) {
  if (::mprotect(trap.file + page * kPage, kPage, protection) != 0) ::_exit(104);
}

// The guardian receives nothing more of this process.
void shut_sockets() {
  for (int one = 3; one < 256; ++one) {
    int type = 0;
    socklen_t size = sizeof type;
    const bool is_socket = ::getsockopt(one, SOL_SOCKET, SO_TYPE, &type, &size) == 0;
    if (is_socket && type == SOCK_SEQPACKET) ::shutdown(one, SHUT_RDWR);
  }
}

void die() {
  ::kill(::getpid(), SIGKILL);
  ::_exit(105);
}

// At a write to a page that is read-only: SIGSEGV.
void on_write(int /*signal*/, siginfo_t* info, void* /*context*/) {
  char* const address = static_cast<char*>(info->si_addr);
  if (trap.until == Until::kFirstWrite || address < trap.file) die();
  const auto page = static_cast<std::size_t>(address - trap.file) / kPage;
  if (page == trap.page && page != 0) {  // the rest of the data; then the header's state follows
    set_page(page, PROT_READ | PROT_WRITE);
    set_page(0, PROT_READ);
    return;
  }
  if (page != 0 || trap.until == Until::kAllButComplete) die();
  shut_sockets();
  set_page(0, PROT_READ | PROT_WRITE);
}

// Saves two steps, and is killed when it saves the third one over the first one.
int save_until(std::size_t page, Until until) {
  if (!open_worker() || !save(1) || !save(2)) return 101;
  trap = {file_of(1), page, until};
  if (trap.file == nullptr) return 102;
  struct sigaction action {};
  action.sa_sigaction = on_write;
  action.sa_flags = SA_SIGINFO;
  ::sigaction(SIGSEGV, &action, nullptr);
  set_page(page, PROT_READ);
  save(3);
  die();
  return 106;
}

// ---- The guardian.

class GuardianSnapshots : public ::testing::Test {
 protected:
  // Serves a worker until it has ended, and what it has left is verified.
  int serve(const std::function<int()>& body) {
    Channel channel = Channel::create();
    EXPECT_TRUE(channel.valid());
    ForkedWorker worker(&channel, body);
    while (channel.socket() >= 0) {
      std::vector<pollfd> polled{{channel.socket(), POLLIN, 0}};
      snapshots_.add_to(&polled);
      if (::poll(polled.data(), polled.size(), snapshots_.has_work() ? 0 : 60'000) < 0) break;
      channel.read_messages();
      if (os::UniqueFd passed = channel.take_passed(); passed.valid()) {
        snapshots_.connect(std::move(passed));
      }
      snapshots_.read();
      snapshots_.work();
    }
    const int code = worker.wait();
    settle();
    return code;
  }
  void settle() {
    while (!snapshots_.settle()) snapshots_.work();
  }
  // The steps of which it has a verified snapshot.
  std::vector<std::int64_t> held() {
    if (auto event = snapshots_.take_event(Instant::max(), true, &notice_)) event_ = *event;
    std::vector<std::int64_t> steps;
    for (const HeldState& one : event_.held) steps.push_back(one.step);
    return steps;
  }
  void begin_round(std::int64_t step) {
    snapshots_.keep({.point = {.step = step}, .world_size = 1, .base_rank = 0, .ranks = 1});
  }

  // A worker of which the test has the socket.
  os::UniqueFd connect() {
    int ends[2];
    EXPECT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
    os::UniqueFd own(ends[0]);
    snapshots_.connect(os::UniqueFd(ends[1]));
    SnapshotPacket hello{.kind = SnapshotKind::kHello};
    hello.world = 1;
    EXPECT_EQ(exchange(own, hello).kind, SnapshotKind::kSlots);
    return own;
  }
  void send(const os::UniqueFd& to, const SnapshotPacket& packet, int file = -1) {
    const std::vector<int> files = file < 0 ? std::vector<int>() : std::vector<int>{file};
    EXPECT_EQ(send_message(to.get(), &packet, sizeof packet, files),
              static_cast<ssize_t>(sizeof packet));
    snapshots_.read();
  }
  SnapshotPacket exchange(const os::UniqueFd& to, const SnapshotPacket& packet, int file = -1) {
    send(to, packet, file);
    SnapshotPacket reply;
    EXPECT_EQ(::recv(to.get(), &reply, sizeof reply, MSG_DONTWAIT),
              static_cast<ssize_t>(sizeof reply));
    return reply;
  }
  SnapshotPacket offer(const os::UniqueFd& to, int file, std::uint64_t bytes,
                       std::uint32_t slot = 0) {
    return exchange(to, {.kind = SnapshotKind::kOffer, .slot = slot, .bytes = bytes}, file);
  }
  bool is_closed(const os::UniqueFd& socket) {
    char byte = 0;
    return ::recv(socket.get(), &byte, 1, MSG_DONTWAIT) == 0;
  }

  Snapshots snapshots_;
  snapshot::HeldEvent event_;
  std::string notice_;
};

constexpr int kKilled = 128 + SIGKILL;

TEST_F(GuardianSnapshots, AWorkerThatIsKilledAtAnyPageOfASaveLeavesTheStepBefore) {
  for (std::size_t page = 0; page < kFilePages; ++page) {
    SCOPED_TRACE("page " + std::to_string(page));
    snapshots_ = {};
    EXPECT_EQ(serve([&] { return save_until(page, Until::kFirstWrite); }), kKilled);
    if (page == 0) {
      EXPECT_THAT(held(), ElementsAre(1, 2));  // the one that it was about to overwrite is whole
    } else {
      EXPECT_THAT(held(), ElementsAre(2));
    }
    begin_round(2);
    EXPECT_EQ(serve(restore), 2);
  }
}

TEST_F(GuardianSnapshots, AWorkerThatIsKilledBeforeTheLastWordOfASaveLeavesTheStepBefore) {
  EXPECT_EQ(serve([] { return save_until(kFilePages - 1, Until::kAllButComplete); }), kKilled);
  EXPECT_THAT(held(), ElementsAre(2));
  begin_round(2);
  EXPECT_EQ(serve(restore), 2);
}

TEST_F(GuardianSnapshots, AWorkerThatIsKilledAfterTheLastWordOfASaveLeavesItsStep) {
  const auto body = [] { return save_until(kFilePages - 1, Until::kCompleteWithoutMessage); };
  EXPECT_EQ(serve(body), kKilled);
  EXPECT_THAT(held(), ElementsAre(2, 3));
  begin_round(3);
  EXPECT_EQ(serve(restore), 3);
}

TEST_F(GuardianSnapshots, ARoundThatContinuesFromTheOlderStepDropsTheNewerOne) {
  EXPECT_EQ(serve([] { return open_worker() && save(1) && save(2) ? 0 : 1; }), 0);
  EXPECT_THAT(held(), ElementsAre(1, 2));
  begin_round(1);
  EXPECT_THAT(held(), ElementsAre(1));
  EXPECT_EQ(serve(restore), 1);
  begin_round(-1);
  EXPECT_THAT(held(), IsEmpty());
  EXPECT_EQ(serve(restore), 0);
}

// By a call for its second part, which writes the step; with 0 it fails.
bool save_by(int step) {
  const elastic_snapshot_part parts[] = {{state, kPage, ELASTIC_SNAPSHOT_BYTES},
                                         {nullptr, 3, ELASTIC_SNAPSHOT_BYTES}};
  const auto fill = [](void* context, std::size_t part, void* memory) {
    const int value = *static_cast<int*>(context);
    std::memset(memory, value, 3);
    return part == 1 && value != 0 ? 1 : 0;
  };
  return elastic_snapshot_save_by(step == 0 ? 9 : step, parts, 2, 0, fill, &step) == 1;
}

int restore_filled() {
  std::int64_t step = 0;
  const elastic_snapshot_part* parts = nullptr;
  std::size_t count = 0;
  if (!open_worker() || elastic_snapshot_restore(&step, &parts, &count) != 1) return 101;
  const char expected[] = {4, 4, 4};
  return count == 2 && std::memcmp(parts[1].data, expected, 3) == 0 ? static_cast<int>(step) : 102;
}

TEST_F(GuardianSnapshots, APartThatCannotBeFilledLeavesTheStepBefore) {
  const auto fails = [] {
    return open_worker() && save(1) && save(2) && !save_by(0) && !save_by(0) ? 0 : 1;
  };
  EXPECT_EQ(serve(fails), 0);
  EXPECT_THAT(held(), ElementsAre(2));
  begin_round(2);
  EXPECT_EQ(serve([] { return open_worker() && !save_by(0) && save_by(4) ? 0 : 1; }), 0);
  EXPECT_THAT(held(), ElementsAre(2, 4));
  begin_round(4);
  EXPECT_EQ(serve(restore_filled), 4);
}

bool set_limit(decltype(RLIMIT_FSIZE) which, rlim_t soft) {
  rlimit limit{};
  if (::getrlimit(which, &limit) != 0) return false;
  limit.rlim_cur = soft;
  return ::setrlimit(which, &limit) == 0;
}

// SIGXFSZ has its default action in a program that is not of Python.
TEST_F(GuardianSnapshots, ASaveBeyondTheLimitOfFilesIsRefused) {
  const auto body = [] {
    if (!open_worker() || !set_limit(RLIMIT_FSIZE, 4 * kPage)) return 101;
    if (save(1)) return 102;
    if (std::strstr(elastic_snapshot_error(), "(ulimit -f)") == nullptr) return 103;
    const elastic_snapshot_part small{state, kPage, ELASTIC_SNAPSHOT_BYTES};
    return elastic_snapshot_save(2, &small, 1) == 1 ? 0 : 104;
  };
  EXPECT_EQ(serve(body), 0);
  EXPECT_THAT(held(), ElementsAre(2));
}

TEST_F(GuardianSnapshots, ASaveWithoutAFreeDescriptorIsRefused) {
  const auto body = [] {
    if (restore() != 0) return 101;  // it is connected
    if (!set_limit(RLIMIT_NOFILE, 3) || save(1)) return 102;
    return std::strstr(elastic_snapshot_error(),
                       "a file of memory cannot be made: Too many open files") != nullptr
               ? 0
               : 103;
  };
  EXPECT_EQ(serve(body), 0);
  EXPECT_THAT(held(), IsEmpty());
}

// ---- Files that no worker makes.

os::UniqueFd memory_file(std::uint64_t size, int seals) {
  os::UniqueFd file(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING));
  EXPECT_EQ(::ftruncate(file.get(), static_cast<off_t>(size)), 0);
  EXPECT_EQ(::fcntl(file.get(), F_ADD_SEALS, seals), 0);
  return file;
}

constexpr int kSealed = F_SEAL_SHRINK | F_SEAL_GROW;
constexpr const char* kUnsealed = "the guardian received no sealed file";
constexpr const char* kShort = "the guardian received a file that is too short";

TEST_F(GuardianSnapshots, FilesThatCouldRaiseASignalAreRefused) {
  const os::UniqueFd worker = connect();
  char path[] = "/tmp/elastic-snapshot-XXXXXX";
  const os::UniqueFd on_disk(::mkstemp(path));
  ::unlink(path);
  struct Row {
    const char* name;
    os::UniqueFd file;
    std::uint64_t bytes;  // as the packet has it
    const char* reason;
  };
  Row rows[] = {
      {"none", {}, kPage, kUnsealed},
      {"without seals", memory_file(kPage, 0), kPage, kUnsealed},
      {"may shrink", memory_file(kPage, F_SEAL_GROW), kPage, kUnsealed},
      {"may grow", memory_file(kPage, F_SEAL_SHRINK), kPage, kUnsealed},
      {"on a disk", os::UniqueFd(::dup(on_disk.get())), kPage, kUnsealed},
      {"a directory", os::UniqueFd(::open("/", O_RDONLY | O_CLOEXEC)), kPage, kUnsealed},
      {"empty", memory_file(0, kSealed), 0, kShort},
      {"a byte less than a header's page", memory_file(kPage - 1, kSealed), 0, kShort},
      {"shorter than it says", memory_file(2 * kPage, kSealed), 2 * kPage + 1, kShort},
      {"of no memory", memory_file(std::uint64_t{1} << 60, kSealed), kPage, "need more memory"},
  };
  for (const Row& row : rows) {
    SCOPED_TRACE(row.name);
    const SnapshotPacket reply = offer(worker, row.file.get(), row.bytes);
    EXPECT_EQ(reply.kind, SnapshotKind::kRefused);
    EXPECT_THAT(reply.text, HasSubstr(row.reason));
    send(worker, {.kind = SnapshotKind::kComplete});  // of a file that is not kept
  }
  const os::UniqueFd file = memory_file(2 * kPage, kSealed);
  EXPECT_EQ(offer(worker, file.get(), 2 * kPage).kind, SnapshotKind::kAccepted);
  settle();
  EXPECT_THAT(held(), IsEmpty());
}

// A snapshot of one part in a sealed file of `pages`.
os::UniqueFd complete_snapshot(std::int64_t step, std::uint64_t pages = 3) {
  os::UniqueFd file = memory_file(pages * kPage, kSealed);
  snapshot::Entry entry{.bytes = 100};
  snapshot::Header header;
  header.size = snapshot::lay_out(&entry, 1);
  header.state = snapshot::State::kComplete;
  header.sequence = 1;
  header.step = step;
  header.world = 1;
  header.parts = 1;
  EXPECT_EQ(::pwrite(file.get(), &header, sizeof header, 0), static_cast<ssize_t>(sizeof header));
  EXPECT_EQ(::pwrite(file.get(), &entry, sizeof entry, kPage), static_cast<ssize_t>(sizeof entry));
  return file;
}

TEST_F(GuardianSnapshots, ARefusedFileLeavesTheOneThatIsKept) {
  const os::UniqueFd worker = connect();
  const os::UniqueFd file = complete_snapshot(5);
  EXPECT_EQ(offer(worker, file.get(), 3 * kPage).kind, SnapshotKind::kAccepted);
  send(worker, {.kind = SnapshotKind::kComplete});
  EXPECT_EQ(offer(worker, memory_file(kPage, 0).get(), kPage).kind, SnapshotKind::kRefused);
  EXPECT_EQ(offer(worker, memory_file(0, kSealed).get(), kPage).kind, SnapshotKind::kRefused);
  settle();
  EXPECT_THAT(held(), ElementsAre(5));
}

// A header that promises more than the file has, and one whose index does.
TEST_F(GuardianSnapshots, ASnapshotThatIsLongerThanItsFileIsNotUsed) {
  const os::UniqueFd worker = connect();
  const os::UniqueFd short_one = complete_snapshot(5, 2);
  EXPECT_EQ(offer(worker, short_one.get(), 2 * kPage, 0).kind, SnapshotKind::kAccepted);
  send(worker, {.kind = SnapshotKind::kComplete, .slot = 0});
  const os::UniqueFd other = complete_snapshot(6);
  const snapshot::Entry outside{.offset = 2 * kPage, .bytes = std::uint64_t{1} << 40};
  EXPECT_EQ(::pwrite(other.get(), &outside, sizeof outside, kPage),
            static_cast<ssize_t>(sizeof outside));
  EXPECT_EQ(offer(worker, other.get(), 3 * kPage, 1).kind, SnapshotKind::kAccepted);
  send(worker, {.kind = SnapshotKind::kComplete, .slot = 1});
  settle();
  EXPECT_THAT(held(), IsEmpty());
}

TEST_F(GuardianSnapshots, APacketOfAnotherFormEndsTheConnection) {
  const os::UniqueFd worker = connect();
  send(worker, {.kind = SnapshotKind::kComplete, .slot = worker::kSlots});
  EXPECT_TRUE(is_closed(worker));
  const os::UniqueFd other = connect();
  EXPECT_EQ(::send(other.get(), "x", 1, MSG_NOSIGNAL), 1);
  snapshots_.read();
  EXPECT_TRUE(is_closed(other));
}

TEST_F(GuardianSnapshots, TheAgentsFilesAreCheckedAsWell) {
  int ends[2];
  ASSERT_EQ(::socketpair(AF_UNIX, SOCK_SEQPACKET | SOCK_CLOEXEC, 0, ends), 0);
  const os::UniqueFd agent(ends[0]);
  snapshots_.attach(os::UniqueFd(ends[1]));
  const auto adopt = [&](int file) {
    snapshot::AgentPacket packet{.kind = snapshot::AgentPacketKind::kAdopt,
                                 .rank = 0,
                                 .world_size = 1,
                                 .round = 0,
                                 .step = 5,
                                 .size = 3 * kPage};
    EXPECT_EQ(send_message(agent.get(), &packet, sizeof packet, {file}),
              static_cast<ssize_t>(sizeof packet));
    snapshots_.read();
    EXPECT_EQ(::recv(agent.get(), &packet, sizeof packet, MSG_DONTWAIT),
              static_cast<ssize_t>(sizeof packet));
    EXPECT_EQ(packet.kind, snapshot::AgentPacketKind::kAdopted);
    return packet.count;
  };
  EXPECT_EQ(adopt(memory_file(3 * kPage, 0).get()), 0U);
  EXPECT_EQ(adopt(memory_file(0, kSealed).get()), 0U);
  EXPECT_EQ(adopt(memory_file(3 * kPage, kSealed).get()), 0U);
  EXPECT_THAT(held(), IsEmpty());
  EXPECT_EQ(adopt(complete_snapshot(5).get()), 1U);
  EXPECT_THAT(held(), ElementsAre(5));
}

}  // namespace
}  // namespace elastic::guardian
