#include "host/snapshot/copies.h"

#include <fcntl.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/resource.h>
#include <sys/socket.h>
#include <unistd.h>

#include <memory>
#include <string>
#include <vector>

#include "core/snapshot/crc32c.h"
#include "guardian/channel.h"
#include "os/loop/thread.h"
#include "support/loop_group.h"

namespace elastic::host {
namespace {

using namespace std::chrono_literals;
using snapshot::AgentPacket;
using snapshot::AgentPacketKind;
using snapshot::SavedStep;
using support::LoopGroup;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr int kWorld = 2;  // two nodes of one rank

struct Snapshot {
  HeldState state;
  std::uint64_t size = 0;
  os::UniqueFd file;
};

// A snapshot of `bytes` bytes of state.
Snapshot make_snapshot(int rank, std::int64_t step, std::size_t bytes, std::uint16_t flags = 0) {
  snapshot::Entry entry{.bytes = bytes};
  snapshot::Header header;
  header.size = snapshot::lay_out(&entry, 1);
  header.state = snapshot::State::kComplete;
  header.sequence = 1;
  header.step = step;
  header.world = kWorld;
  header.rank = static_cast<std::uint32_t>(rank);
  header.parts = 1;
  header.round = 1;
  header.flags = flags;
  std::string content(snapshot::round_up(header.size, snapshot::kPage), '\0');
  std::memcpy(content.data(), &header, sizeof header);
  content[snapshot::kVerdictOffset] = 'v';  // not a part of the snapshot
  std::memcpy(content.data() + snapshot::kPage, &entry, sizeof entry);
  for (std::size_t i = 0; i < bytes; ++i) {
    content[entry.offset + i] = static_cast<char>(i * 7 + static_cast<std::size_t>(step));
  }
  Snapshot made{.state = {.rank = rank,
                          .world_size = kWorld,
                          .step = step,
                          .round = 1,
                          .is_replicated = flags == snapshot::kReplicated},
                .size = header.size,
                .file = os::UniqueFd(::memfd_create("test", MFD_CLOEXEC | MFD_ALLOW_SEALING))};
  EXPECT_EQ(::write(made.file.get(), content.data(), content.size()),
            static_cast<ssize_t>(content.size()));
  made.state.digest = snapshot::digest_of(header, content.data());
  return made;
}

// A node, with the test in place of its guardian.
class Node {
 public:
  explicit Node(int rank, SnapshotCopies::Options options = {}) : rank_(rank) {
    options.job_id = "job";
    options.address = options.bind_host = "127.0.0.1";
    options.host = "node" + std::to_string(rank);
    thread_->call([&] {
      copies_ = std::make_unique<SnapshotCopies>(
          &thread_->loop(), options,
          SnapshotCopies::Sink{
              .report = [this](const snapshot::CopyReport& one) { report_ = one; },
              .changed = [this](const snapshot::CopiesEvent& event) { kept_ = event; },
              .attach = [this](os::UniqueFd socket) { agent_ = std::move(socket); },
              .log = [this](const std::string& text) { logs_.push_back(text); }});
    });
    begin_round(-1);
  }
  ~Node() { lose(); }
  void lose() {
    thread_->call([this] { copies_.reset(); });
  }

  void begin_round(std::int64_t step, std::uint64_t round = 1) {
    thread_->call([&] {
      copies_->begin_round(
          round, rank_,
          {.point = {.step = step}, .world_size = kWorld, .base_rank = rank_, .ranks = 1});
    });
  }
  // With another world size.
  void begin_shared_round(std::int64_t step, std::uint64_t round) {
    const ResumePoint point{.step = step, .round = 1, .kind = ResumeKind::kReplicated};
    thread_->call([&] {
      copies_->begin_round(
          round, rank_,
          {.point = point, .world_size = 2 * kWorld, .base_rank = 2 * rank_, .ranks = 2});
    });
  }
  // The guardian passes its first snapshot, for other nodes.
  void share() {
    const Snapshot& one = saved_.front();
    reply({.kind = AgentPacketKind::kPinned,
           .rank = one.state.rank,
           .world_size = one.state.world_size,
           .round = one.state.round,
           .step = one.state.step,
           .size = one.size,
           .digest = one.state.digest,
           .is_replicated = true,
           .is_shared = true},
          {one.file.get()});
  }
  bool is_attached() const { return agent_.valid(); }
  void fetch_shared(std::int64_t step, int rank, const std::string& address) {
    done_.reset();
    const HeldSource source{
        .rank = rank, .round = 1, .address = address, .is_shared = true, .world_size = kWorld};
    thread_->call([&] {
      copies_->fetch(step, 2 * kWorld, {source},
                     [this](const Status& status) { done_ = std::string(status.message()); });
    });
  }
  bool shares(std::int64_t step) const {
    return std::any_of(kept_.held.begin(), kept_.held.end(), [&](const HeldState& one) {
      return one.step == step && one.is_copy && one.is_replicated;
    });
  }
  // The rank has saved these, and nothing else.
  std::string save(std::vector<Snapshot> saves) {
    saved_ = std::move(saves);
    std::vector<HeldState> held;
    for (const Snapshot& one : saved_) held.push_back(one.state);
    thread_->call([&] { copies_->on_held(held); });
    return report_.address;
  }
  void order(std::int64_t step, std::int64_t base, const std::string& address,
             std::vector<snapshot::Buddy> more = {}) {
    const SavedStep kept = base < 0 ? SavedStep{} : SavedStep{base, 1};
    thread_->call([&] { copies_->on_order({1, {step, 1}, kept, {address, "b"}, more}); });
  }
  void fetch(std::int64_t step, const std::string& address) {
    done_.reset();
    thread_->call([&] {
      copies_->fetch(step, kWorld, {{rank_, 1, address}},
                     [this](const Status& status) { done_ = std::string(status.message()); });
    });
  }
  const std::vector<std::string>& logs() const { return logs_; }
  std::vector<std::int64_t> kept_of(int rank) const {
    std::vector<std::int64_t> steps;
    for (const HeldState& one : kept_.held) {
      if (one.rank == rank) steps.push_back(one.step);
    }
    return steps;
  }
  std::uint64_t bytes() {
    std::uint64_t found = 0;
    thread_->call([&] { found = copies_->bytes(); });
    return found;
  }
  bool has_copied(std::int64_t step) const {
    return std::find(report_.copied.begin(), report_.copied.end(), SavedStep{step, 1}) !=
           report_.copied.end();
  }
  const std::optional<std::string>& done() const { return done_; }  // "": with success
  const std::vector<Snapshot>& adopted() const { return adopted_; }
  std::vector<Snapshot>& saved() { return saved_; }

  // What the guardian does.
  void serve() {
    AgentPacket packet;
    while (agent_.valid()) {
      const auto got = guardian::receive_message<int>(agent_.get(), &packet, sizeof packet,
                                                      SCM_RIGHTS, MSG_DONTWAIT);
      os::UniqueFd file(got.ancillary.value_or(-1));
      if (got.bytes != sizeof packet) return;
      if (packet.kind == AgentPacketKind::kAdopt) {
        adopted_.push_back({.state = {.rank = packet.rank,
                                      .world_size = packet.world_size,
                                      .step = packet.step,
                                      .round = packet.round,
                                      .digest = packet.digest,
                                      .is_replicated = packet.is_shared},
                            .size = packet.size,
                            .file = std::move(file)});
        packet.kind = AgentPacketKind::kAdopted;
        packet.count = 1;
        reply(packet, {});
        continue;
      }
      for (const Snapshot& one : saved_) {
        if (one.state.step != packet.step && one.state.step != packet.base_step) continue;
        reply({.kind = AgentPacketKind::kPinned,
               .rank = one.state.rank,
               .world_size = one.state.world_size,
               .round = one.state.round,
               .step = one.state.step,
               .size = one.size,
               .digest = one.state.digest},
              {one.file.get()});
      }
      packet.kind = AgentPacketKind::kEnd;
      reply(packet, {});
    }
  }

 private:
  void reply(const AgentPacket& packet, const std::vector<int>& files) {
    EXPECT_EQ(guardian::send_message(agent_.get(), &packet, sizeof packet, files),
              static_cast<ssize_t>(sizeof packet));
  }

  const int rank_;
  snapshot::CopyReport report_;
  snapshot::CopiesEvent kept_;
  std::vector<std::string> logs_;
  std::optional<std::string> done_;
  std::vector<Snapshot> saved_, adopted_;
  os::UniqueFd agent_;
  const std::unique_ptr<os::LoopThread> thread_ =
      *os::LoopThread::start("node", LoopGroup::current());
  std::unique_ptr<SnapshotCopies> copies_;
};

std::string content_of(const Snapshot& one) {
  std::string bytes(one.size, '\0');
  EXPECT_EQ(::pread(one.file.get(), bytes.data(), bytes.size(), 0),
            static_cast<ssize_t>(bytes.size()));
  return bytes;
}

class SnapshotCopiesTest : public ::testing::Test {
 protected:
  template <typename Condition>
  void await(Condition condition) {
    group_.run_until(
        [&] {
          for (Node* node : nodes_) node->serve();
          return condition();
        },
        1min);
    EXPECT_TRUE(condition());
  }
  // The same where the guardian has to reply again later.
  template <typename Condition>
  void await_replies(Condition condition) {
    for (int i = 0; i < 600 && !condition(); ++i) {
      for (Node* node : nodes_) node->serve();
      group_.advance(100ms);
    }
    EXPECT_TRUE(condition());
  }
  static std::vector<Snapshot> one(Snapshot made) {
    std::vector<Snapshot> list;
    list.push_back(std::move(made));
    return list;
  }

  // Both have saved step 5, and `a` is to copy it to `b`, whose address is returned.
  std::string begin_copy(Node* a, Node* b, std::size_t bytes) {
    nodes_ = {a, b};
    const std::string address = b->save(one(make_snapshot(1, 5, 100)));
    EXPECT_FALSE(a->save(one(make_snapshot(0, 5, bytes))).empty());
    a->order(5, -1, address);
    return address;
  }

  LoopGroup group_;
  std::vector<Node*> nodes_;
};

constexpr std::size_t kLarge = (std::size_t{3} << 20) + 5;

TEST_F(SnapshotCopiesTest, ABuddyKeepsTheCopyAndSendsItToTheNodeThatFollows) {
  Node a(0);
  Node b(1);
  const std::string address = begin_copy(&a, &b, kLarge);
  await([&] { return a.has_copied(5); });
  EXPECT_THAT(b.kept_of(0), ElementsAre(5));
  const std::string sent = content_of(a.saved()[0]);
  const std::uint32_t digest = a.saved()[0].state.digest;
  a.lose();
  Node c(0);
  nodes_ = {&b, &c};
  c.fetch(5, address);
  await([&] { return c.done().has_value(); });
  EXPECT_EQ(*c.done(), "");
  ASSERT_EQ(c.adopted().size(), 1U);
  EXPECT_EQ(c.adopted()[0].state.digest, digest);
  std::string expected = sent;
  expected[snapshot::kVerdictOffset] = '\0';
  EXPECT_EQ(content_of(c.adopted()[0]), expected);
  EXPECT_NE(::fcntl(c.adopted()[0].file.get(), F_GET_SEALS) & F_SEAL_SHRINK, 0);
}

TEST_F(SnapshotCopiesTest, TheOlderCopyStaysUntilTheNextOneIsComplete) {
  Node a(0);
  Node b(1);
  const std::string address = begin_copy(&a, &b, 100);
  await([&] { return a.has_copied(5); });
  std::vector<Snapshot> both = one(make_snapshot(0, 5, 100));
  both.push_back(make_snapshot(0, 6, kLarge));
  a.save(std::move(both));
  // One byte was changed after the digest was computed.
  ASSERT_EQ(::pwrite(a.saved()[1].file.get(), "!", 1, 9000), 1);
  a.order(6, 5, address);
  await([&] { return !a.logs().empty(); });
  EXPECT_THAT(a.logs(), ElementsAre(HasSubstr("the bytes of rank 0 after step 6 are not what its "
                                              "digest says")));
  EXPECT_FALSE(a.has_copied(6));
  EXPECT_THAT(b.kept_of(0), ElementsAre(5));
  // And it is tried again.
  std::vector<Snapshot> again = one(make_snapshot(0, 5, 100));
  again.push_back(make_snapshot(0, 6, kLarge));
  a.save(std::move(again));
  await([&] { return a.has_copied(6); });
  EXPECT_THAT(b.kept_of(0), ElementsAre(5, 6));
  b.order(6, -1, "127.0.0.1:1");
  EXPECT_THAT(b.kept_of(0), ElementsAre(6));
}

// A file may not be larger, until the destruction.
class FileSizeLimit {
 public:
  explicit FileSizeLimit(rlim_t bytes) {
    EXPECT_EQ(::getrlimit(RLIMIT_FSIZE, &before_), 0);
    const rlimit lower{bytes, before_.rlim_max};
    EXPECT_EQ(::setrlimit(RLIMIT_FSIZE, &lower), 0);
  }
  ~FileSizeLimit() { ::setrlimit(RLIMIT_FSIZE, &before_); }

 private:
  rlimit before_{};
};

TEST_F(SnapshotCopiesTest, ACopyIsRefusedBeforeItExceedsTheLimitOfFiles) {
  Node a(0);
  Node b(1);
  begin_copy(&a, &b, kLarge);
  {
    const FileSizeLimit limit(1 << 20);
    await([&] { return !a.logs().empty(); });
  }
  EXPECT_THAT(a.logs(), ElementsAre(HasSubstr("it is larger than the launcher there may make a "
                                              "file (ulimit -f); it is tried again")));
  EXPECT_THAT(b.kept_of(0), IsEmpty());
  await_replies([&] { return a.has_copied(5); });  // the limit was raised
  EXPECT_THAT(b.kept_of(0), ElementsAre(5));
}

TEST_F(SnapshotCopiesTest, ACopyThatCannotBeWrittenIsDropped) {
  const auto before = ::signal(SIGXFSZ, SIG_IGN);
  Node a(0, {.rate = 1 << 20});
  Node b(1);
  begin_copy(&a, &b, kLarge);
  await([&] { return b.bytes() > 0; });  // the file exists, and its bytes follow
  {
    const FileSizeLimit limit(1 << 20);
    await([&] { return !a.logs().empty(); });
  }
  EXPECT_THAT(a.logs(), ElementsAre(HasSubstr("the memory cannot be written: File too large")));
  EXPECT_EQ(b.bytes(), 0U);
  await_replies([&] { return a.has_copied(5); });
  EXPECT_THAT(b.kept_of(0), ElementsAre(5));
  ::signal(SIGXFSZ, before);
}

TEST_F(SnapshotCopiesTest, AStepIsCopiedWhenEveryBuddyHasIt) {
  Node a(0);
  Node b(1);
  Node c(1);
  const std::string first = b.save(one(make_snapshot(1, 5, 100)));
  const std::string second = c.save(one(make_snapshot(1, 5, 100)));
  nodes_ = {&a, &b, &c};
  a.save(one(make_snapshot(0, 5, 100)));
  a.order(5, -1, first, {{second, "c"}});
  await([&] { return a.has_copied(5); });
  EXPECT_THAT(b.kept_of(0), ElementsAre(5));
  EXPECT_THAT(c.kept_of(0), ElementsAre(5));
}

TEST_F(SnapshotCopiesTest, ALostBuddyIsReportedOnce) {
  Node a(0);
  std::string address;
  {
    Node b(1);
    address = b.save(one(make_snapshot(1, 5, 100)));
  }
  nodes_ = {&a};
  a.save(one(make_snapshot(0, 5, 100)));
  a.order(5, -1, address);
  await([&] { return !a.logs().empty(); });
  EXPECT_THAT(a.logs()[0], HasSubstr("the snapshots of this node are not copied to b: "));
  group_.advance(10s);
  EXPECT_EQ(a.logs().size(), 1U);
}

TEST_F(SnapshotCopiesTest, AStateThatIsNotThereIsReportedAtOnce) {
  Node a(0);
  Node b(1);
  nodes_ = {&a, &b};
  const std::string address = b.save(one(make_snapshot(1, 5, 100)));
  a.fetch(5, address);
  await([&] { return a.done().has_value(); });
  EXPECT_THAT(*a.done(), HasSubstr("has none"));
  EXPECT_THAT(a.adopted(), IsEmpty());
  a.fetch(5, "127.0.0.1:1");
  await([&] { return a.done().has_value(); });
  EXPECT_NE(*a.done(), "");
}

TEST_F(SnapshotCopiesTest, CopiesThatNeedMoreMemoryThanAllowedAreRefused) {
  Node a(0);
  Node b(1, {.memory_max = 1000});
  begin_copy(&a, &b, kLarge);
  await([&] { return !a.logs().empty(); });
  EXPECT_THAT(a.logs()[0], HasSubstr("--snapshot-memory"));
}

TEST_F(SnapshotCopiesTest, TheRateLimitsWhatIsSent) {
  Node a(0, {.rate = 1 << 20});
  Node b(1);
  begin_copy(&a, &b, kLarge);
  for (int i = 0; i < 20; ++i) {
    for (Node* node : nodes_) node->serve();
    group_.advance(100ms);
  }
  EXPECT_FALSE(a.has_copied(5));
  await([&] { return a.has_copied(5); });
}

TEST_F(SnapshotCopiesTest, ACopyOfAnotherNodeReplacesNoSnapshotOfThisNode) {
  Node a(0, {.rate = 1 << 20});
  Node b(1);
  Node stranger(0);  // has the same rank
  nodes_ = {&a, &b, &stranger};
  const std::string address = b.save(one(make_snapshot(1, 5, 100)));
  const std::string own = a.save(one(make_snapshot(0, 5, kLarge)));
  a.order(5, -1, address);
  await([&] { return !b.kept_of(0).empty() || !a.kept_of(0).empty(); });
  stranger.save(one(make_snapshot(0, 5, 200)));
  stranger.order(5, -1, own);
  await([&] { return !stranger.logs().empty(); });
  EXPECT_THAT(stranger.logs()[0], HasSubstr("rank 0 after step 5 belongs to that node itself"));
  await([&] { return a.has_copied(5); });
  EXPECT_THAT(b.kept_of(0), ElementsAre(5));
}

TEST_F(SnapshotCopiesTest, CopiesThatAreOnTheirWayUseTheMemoryToo) {
  Node a(0, {.rate = 1 << 20});
  Node b(1, {.memory_max = kLarge + (std::size_t{1} << 20)});
  Node c(0);
  const std::string address = begin_copy(&a, &b, kLarge);
  nodes_ = {&a, &b, &c};
  await([&] { return !a.kept_of(0).empty(); });
  for (int i = 0; i < 5; ++i) {
    for (Node* node : nodes_) node->serve();
    group_.advance(100ms);
  }
  EXPECT_FALSE(a.has_copied(5));
  c.save(one(make_snapshot(0, 6, kLarge)));
  c.order(6, -1, address);
  await([&] { return !c.logs().empty(); });
  EXPECT_THAT(c.logs()[0], HasSubstr("--snapshot-memory"));
  await([&] { return a.has_copied(5); });
}

// The node that joins has begun the round before the one that has the state, which is alone.
TEST_F(SnapshotCopiesTest, AReplicatedStateIsSentWhenTheGuardianSharesIt) {
  Node a(0);
  Node c(1);
  nodes_ = {&a, &c};
  const std::string address = a.save(one(make_snapshot(0, 5, kLarge, snapshot::kReplicated)));
  ASSERT_FALSE(address.empty());
  c.begin_shared_round(5, 2);
  c.fetch_shared(5, 0, address);
  group_.advance(1s);
  EXPECT_FALSE(c.done().has_value());
  a.begin_shared_round(5, 2);
  ASSERT_TRUE(a.is_attached());
  a.share();
  await([&] { return c.done().has_value(); });
  EXPECT_EQ(*c.done(), "");
  ASSERT_EQ(c.adopted().size(), 1U);
  EXPECT_TRUE(c.adopted()[0].state.is_replicated) << "the guardian shares it";
  EXPECT_EQ(c.adopted()[0].state.digest, a.saved()[0].state.digest);
  // The guardian has newer ones.
  EXPECT_TRUE(a.shares(5));
  a.save(one(make_snapshot(0, 6, 100, snapshot::kReplicated)));
  EXPECT_FALSE(a.shares(5));
}

TEST_F(SnapshotCopiesTest, ARoundThatContinuesFromAnotherStepSendsNone) {
  Node a(0);
  Node c(1);
  nodes_ = {&a, &c};
  const std::string address = a.save(one(make_snapshot(0, 5, 100, snapshot::kReplicated)));
  c.fetch_shared(5, 0, address);
  group_.advance(1s);
  a.begin_round(4, 2);
  await([&] { return c.done().has_value(); });
  EXPECT_THAT(*c.done(), HasSubstr("it is not kept any more"));
}

// And so is its own copy of another node, without a transfer.
TEST_F(SnapshotCopiesTest, ACopyOfAReplicatedStateIsSharedWithAnotherWorldSize) {
  Node a(0);
  Node b(1);
  nodes_ = {&a, &b};
  const std::string address = b.save(one(make_snapshot(1, 5, 100, snapshot::kReplicated)));
  a.save(one(make_snapshot(0, 5, kLarge, snapshot::kReplicated)));
  a.order(5, -1, address);
  await([&] { return a.has_copied(5); });
  EXPECT_TRUE(b.shares(5));
  a.lose();
  nodes_ = {&b};
  b.begin_shared_round(5, 2);
  b.fetch_shared(5, 0, address);
  await([&] { return b.done().has_value(); });
  EXPECT_EQ(*b.done(), "");
  ASSERT_EQ(b.adopted().size(), 1U);
  b.save(one(make_snapshot(1, 6, 100, snapshot::kReplicated)));
  EXPECT_FALSE(b.shares(5)) << "of the round before";
}

TEST_F(SnapshotCopiesTest, ARoundKeepsWhatItContinuesFrom) {
  Node a(0);
  Node b(1);
  begin_copy(&a, &b, 100);
  await([&] { return a.has_copied(5); });
  b.begin_round(5, 2);
  EXPECT_THAT(b.kept_of(0), ElementsAre(5));
  b.begin_round(4, 3);
  EXPECT_THAT(b.kept_of(0), IsEmpty());
}

}  // namespace
}  // namespace elastic::host
