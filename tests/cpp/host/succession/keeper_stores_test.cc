// The contract of RendezvousBackend, tested for each kind of backend.

#include "elastic/rendezvous_backend.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <filesystem>

#include "elastic/store_client.h"
#include "elastic/store_server.h"
#include "host/membership/memory_backend.h"
#include "os/file/file.h"

namespace elastic {
namespace {

using ::testing::HasSubstr;

constexpr Duration kPatience = std::chrono::seconds(60);

// A store of one kind: empty at first, creates backends, and can be cleared.
struct World {
  virtual ~World() = default;
  virtual std::shared_ptr<RendezvousBackend> backend(const std::string& run_id) = 0;
  virtual void empty() = 0;
  virtual bool is_shared_between_processes() const { return true; }
};

struct FileWorld : World {
  os::TemporaryDirectory directory = *os::TemporaryDirectory::create();
  std::shared_ptr<RendezvousBackend> backend(const std::string& run_id) override {
    return make_file_backend(
        {.path = directory.path() + "/state", .run_id = run_id, .call_timeout = kPatience});
  }
  void empty() override {
    for (const auto& entry : std::filesystem::directory_iterator(directory.path())) {
      if (entry.path().extension() != ".lock") std::filesystem::remove(entry);
    }
  }
};

struct StoreWorld : World {
  std::unique_ptr<StoreServer> server = *StoreServer::start({});
  std::shared_ptr<RendezvousBackend> backend(const std::string& run_id) override {
    auto made = make_store_backend(
        {.host = "127.0.0.1", .port = server->port(), .run_id = run_id, .call_timeout = kPatience});
    // One attempt to connect has a second, and a rendezvous repeats it.
    for (int attempt = 0; attempt < 30 && !made->get_state().ok(); ++attempt) {
    }
    return made;
  }
  void empty() override {
    StoreClientOptions options;
    options.port = server->port();
    auto client = *StoreClient::connect(options);
    const auto keys = client->list_keys();
    ASSERT_TRUE(keys.ok());
    for (const std::string& key : keys.value()) ASSERT_TRUE(client->delete_key(key).ok());
  }
};

struct MemoryWorld : World {
  std::shared_ptr<test::MemoryStore> store = std::make_shared<test::MemoryStore>();
  std::shared_ptr<RendezvousBackend> backend(const std::string&) override {
    return std::make_shared<test::MemoryBackend>(store);
  }
  void empty() override { store->empty(); }
  bool is_shared_between_processes() const override { return false; }
};

struct Kind {
  const char* name;
  std::unique_ptr<World> (*make)();
};
const Kind kKinds[] = {
    {"file", [] { return std::unique_ptr<World>(std::make_unique<FileWorld>()); }},
    {"store", [] { return std::unique_ptr<World>(std::make_unique<StoreWorld>()); }},
    {"memory", [] { return std::unique_ptr<World>(std::make_unique<MemoryWorld>()); }},
};

class RendezvousBackendTest : public ::testing::TestWithParam<Kind> {
 protected:
  std::unique_ptr<World> world = GetParam().make();
  std::shared_ptr<RendezvousBackend> a = world->backend("job");
  std::shared_ptr<RendezvousBackend> b = world->backend("job");
};

INSTANTIATE_TEST_SUITE_P(Kinds, RendezvousBackendTest, ::testing::ValuesIn(kKinds),
                         [](const auto& kind) { return kind.param.name; });

TEST_P(RendezvousBackendTest, IsInitiallyEmpty) {
  const auto stored = a->get_state();
  ASSERT_TRUE(stored.ok()) << stored.status().message();
  EXPECT_FALSE(stored.value().has_value());
}

TEST_P(RendezvousBackendTest, ReadersReceiveTheStoredState) {
  const std::string bytes = std::string("\0\xff binary \n", 11) + std::string(70'000, '\0');
  const auto written = a->set_state(bytes, std::nullopt);
  ASSERT_TRUE(written.ok()) << written.status().message();
  EXPECT_TRUE(written->was_set);
  EXPECT_EQ(written->now.bytes, bytes);
  const auto stored = b->get_state();
  ASSERT_TRUE(stored.ok() && stored.value().has_value());
  EXPECT_EQ(stored.value()->bytes, bytes);
  EXPECT_EQ(stored.value()->token, written->now.token);
}

TEST_P(RendezvousBackendTest, OneOfTwoConcurrentWritersSucceeds) {
  ASSERT_TRUE(a->set_state("one", std::nullopt)->was_set);
  EXPECT_FALSE(b->set_state("other", std::nullopt)->was_set) << "there is something already";
  const std::string token = a->get_state().value()->token;
  EXPECT_TRUE(b->set_state("two", token)->was_set);
  const auto lost = a->set_state("three", token);
  ASSERT_TRUE(lost.ok());
  EXPECT_FALSE(lost->was_set);
  EXPECT_EQ(lost->now.bytes, "two");
  EXPECT_TRUE(a->set_state("three", lost->now.token)->was_set);
}

TEST_P(RendezvousBackendTest, ReportsThatItIsEmptyAgain) {
  ASSERT_TRUE(a->set_state("one", std::nullopt)->was_set);
  world->empty();
  const auto stored = a->get_state();
  ASSERT_TRUE(stored.ok());
  EXPECT_FALSE(stored.value().has_value());
}

// Each of several processes counts up by compare-and-set; no count is lost.
TEST_P(RendezvousBackendTest, NoWriteIsLostBetweenProcesses) {
  if (!world->is_shared_between_processes()) GTEST_SKIP() << "lives in one process";
  constexpr int kProcesses = 4;
  constexpr int kCounts = 50;
  std::vector<pid_t> children;
  for (int i = 0; i < kProcesses; ++i) {
    const pid_t child = ::fork();
    if (child == 0) {
      auto mine = world->backend("count");
      for (int count = 0; count < kCounts;) {
        const auto stored = mine->get_state();
        if (!stored.ok()) ::_exit(1);
        const bool is_there = stored.value().has_value();
        const int value = is_there ? std::stoi(stored.value()->bytes) : 0;
        const auto written =
            mine->set_state(std::to_string(value + 1) + " by " + std::to_string(::getpid()),
                            is_there ? std::optional(stored.value()->token) : std::nullopt);
        if (!written.ok()) ::_exit(2);
        if (written->was_set) ++count;
      }
      ::_exit(0);
    }
    children.push_back(child);
  }
  for (const pid_t child : children) {
    int status = 0;
    ASSERT_EQ(::waitpid(child, &status, 0), child);
    EXPECT_EQ(status, 0);
  }
  EXPECT_EQ(std::stoi(world->backend("count")->get_state().value()->bytes), kProcesses * kCounts);
}

TEST(StoreBackend, AKeyThatHasGoneIsAStoreThatWasRestarted) {
  StoreWorld world;
  auto backend = world.backend("job");
  ASSERT_TRUE(backend->set_state("one", std::nullopt)->was_set);
  const std::string token = backend->get_state().value()->token;
  world.empty();
  const auto written = backend->set_state("two", token);
  EXPECT_EQ(written.status().code(), StatusCode::kFailedPrecondition);
  EXPECT_THAT(std::string(written.status().message()), HasSubstr("restarted"));
}

TEST(StoreBackend, JobsOfDifferentIdsAndTorchsOwnKeyDoNotMeet) {
  StoreWorld world;
  StoreClientOptions options;
  options.port = world.server->port();
  auto client = *StoreClient::connect(options);
  ASSERT_TRUE(client->set("torch.rendezvous.job", "gASV").ok());
  ASSERT_TRUE(world.backend("job")->set_state("one", std::nullopt)->was_set);
  ASSERT_TRUE(world.backend("job2")->set_state("two", std::nullopt)->was_set);
  EXPECT_EQ(*client->get("torch.rendezvous.job"), "gASV");
  EXPECT_EQ(world.backend("job")->get_state().value()->bytes, "one");
}

TEST(StoreBackend, AServerThatIsNotThereIsUnavailable) {
  auto backend = make_store_backend({.host = "127.0.0.1",
                                     .port = 1,
                                     .run_id = "job",
                                     .call_timeout = std::chrono::milliseconds(100)});
  EXPECT_EQ(backend->get_state().status().code(), StatusCode::kUnavailable);
  EXPECT_EQ(backend->set_state("x", std::nullopt).status().code(), StatusCode::kUnavailable);
}

TEST(FileBackend, ADirectoryThatIsNotThereIsAnErrorThatNamesIt) {
  auto backend = make_file_backend({.path = "/nowhere/at/all", .run_id = "job"});
  const auto written = backend->set_state("x", std::nullopt);
  EXPECT_EQ(written.status().code(), StatusCode::kNotFound);
  EXPECT_THAT(std::string(written.status().message()), HasSubstr("/nowhere/at/all"));
}

TEST(FileBackend, AFileThatWasRemovedUnderAJobIsAnError) {
  FileWorld world;
  auto backend = world.backend("job");
  ASSERT_TRUE(backend->set_state("one", std::nullopt)->was_set);
  const std::string token = backend->get_state().value()->token;
  std::filesystem::remove(world.directory.path() + "/state.job");
  EXPECT_EQ(backend->set_state("two", token).status().code(), StatusCode::kFailedPrecondition);
}

// An automounter, a failover, a ticket that has expired: the job waits for store_grace.
TEST(FileBackend, ADirectoryThatIsAwayIsAnOutage) {
  FileWorld world;
  auto backend = world.backend("job");
  ASSERT_TRUE(backend->set_state("one", std::nullopt)->was_set);
  const std::string token = backend->get_state().value()->token;
  const std::string away = world.directory.path() + ".away";
  std::filesystem::rename(world.directory.path(), away);
  const auto expect_outage = [&] {
    EXPECT_EQ(backend->get_state().status().code(), StatusCode::kUnavailable);
    EXPECT_EQ(backend->set_state("two", token).status().code(), StatusCode::kUnavailable);
  };
  expect_outage();
  std::filesystem::create_directory(world.directory.path());  // where it is mounted
  expect_outage();
  std::filesystem::remove(world.directory.path());
  std::filesystem::rename(away, world.directory.path());
  EXPECT_TRUE(backend->set_state("two", token)->was_set);
}

}  // namespace
}  // namespace elastic
