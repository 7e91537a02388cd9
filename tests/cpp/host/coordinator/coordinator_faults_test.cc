// Faults that a coordinator survives, in virtual time: stalls, faulty clients, clients without
// limits, its restart.

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <poll.h>
#include <sys/inotify.h>

#include <chrono>
#include <cstdio>
#include <filesystem>
#include <fstream>
#include <future>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "host/coordinator/coordinator_fixture.h"
#include "host/succession/file_keeper.h"
#include "os/file/file.h"

namespace elastic::host {
namespace {

using std::chrono::seconds;
using testing::HasSubstr;

class CoordinatorFaultsTest : public TurnedCoordinatorTest {
 protected:
  // Another client's session is not affected.
  void expect_unharmed(SessionClient* node) {
    EXPECT_FALSE(node->receives<rdzv::Restart>());
    const auto another = connect(77, "another" + std::to_string(++num_others_));
    another->join(nnodes(1, 1));
    EXPECT_EQ(another->expect<rdzv::Round>().record->nodes, 1);
  }

 private:
  int num_others_ = 0;  // each has a job of its own: the one before may have been lost
};

// No node sends anything for longer than node_timeout.
TEST_F(CoordinatorFaultsTest, StalledLoopEvictsNoNode) {
  start();
  JobSettings settings = nnodes(1, 2);
  settings.node_timeout = seconds(6);
  const auto nodes = run_round(2, settings);
  group.pause(&coordinator->loop());
  group.advance(seconds(20));
  group.resume(&coordinator->loop());
  for (const auto& node : nodes) EXPECT_FALSE(node->receives<rdzv::Evicted>());
  for (const auto& node : nodes) EXPECT_FALSE(node->receives<rdzv::Restart>());
}

TEST_F(CoordinatorFaultsTest, AFaultyBeginningEndsItsOwnSessionWithOneSentence) {
  start();
  const auto nodes = run_round(1, nnodes(1, 1));
  const std::string magic(session::kMagic);
  const std::uint32_t length = 100 << 10;
  const std::pair<std::string, const char*> cases[] = {
      {magic + std::string(64, '\x7f'), "a session frame of"},
      {"\xE5"
       "elastiq",
       "not a session"},
      {SessionClient::first_bytes({.version = 9, .oldest_version = 8, .job_id = "job"}),
       "the peer uses version 8 to 9 of the session protocol, this process 3"},
      // A frame that is too long for a hello is refused before it is read.
      {magic + std::string(reinterpret_cast<const char*>(&length), sizeof length),
       "must be a hello"},
  };
  for (const auto& [bytes, sentence] : cases) {
    SessionClient client(coordinator->port());
    client.raw().send(bytes);
    EXPECT_THAT(std::string(client.expect<rdzv::Refused>().error.message()), HasSubstr(sentence));
    EXPECT_TRUE(client.is_closed());
  }
  expect_unharmed(nodes[0].get());
}

TEST_F(CoordinatorFaultsTest, MagicWithoutTheCheckIsInvalid) {
  start();
  TestClient client(coordinator->port());
  client.validate();
  client.send(session::kMagic);
  EXPECT_TRUE(client.is_closed());
}

TEST_F(CoordinatorFaultsTest, BytesThatArriveOneByOneDelayNoOtherSession) {
  start();
  const auto nodes = run_round(1, nnodes(1, 1));
  SessionClient slow(coordinator->port());
  slow.be(5);
  std::string bytes = SessionClient::first_bytes({.job_id = "slow", .node = slow.info.id});
  session::append(&bytes, session::ClientMessage(rdzv::Join{slow.info, nnodes(1, 1)}));
  for (const char byte : bytes) {
    slow.raw().send(std::string(1, byte));
    EXPECT_FALSE(nodes[0]->receives<rdzv::Restart>());
  }
  slow.expect<session::ServerHello>();
  slow.expect<rdzv::Round>();
}

TEST_F(CoordinatorFaultsTest, SessionSendsForItsOwnNodeOnly) {
  start();
  const auto node = connect(1);
  node->info.id = {1, 2};
  node->join(nnodes(1, 1));
  EXPECT_THAT(std::string(node->expect<rdzv::Refused>().error.message()),
              HasSubstr("messages of its own node only"));
  EXPECT_TRUE(node->is_closed());
}

TEST_F(CoordinatorFaultsTest, ConnectionWithoutAHelloIsClosed) {
  const CoordinatorLimits limits;
  start({.limits = limits});
  SessionClient client(coordinator->port());
  client.raw().send(session::kMagic);
  const Instant begun = group.now();
  EXPECT_TRUE(client.is_closed());
  EXPECT_EQ(group.now() - begun, limits.hello_timeout);
}

TEST_F(CoordinatorFaultsTest, SessionsBeyondTheLimitAreClosedAndJobsRejected) {
  start({.limits = {.jobs_max = 2}});
  const auto one = connect(1, "one");
  one->join(nnodes(2, 2));
  one->expect<rdzv::Waiting>();
  const auto two = connect(1, "two");
  two->join(nnodes(2, 2));
  two->expect<rdzv::Waiting>();
  const auto three = connect(1, "three");
  EXPECT_THAT(std::string(three->expect<rdzv::Refused>().error.message()),
              HasSubstr("2 jobs, which is its limit"));

  start({.limits = {.sessions_max = 3}});  // a refused session counts until it has ended
  std::vector<std::unique_ptr<SessionClient>> open;
  for (const std::uint64_t node : {1, 2, 3}) {
    open.push_back(connect(node));
    open.back()->expect<session::ServerHello>();
  }
  EXPECT_TRUE(connect(4)->is_closed());
}

TEST_F(CoordinatorFaultsTest, JobsThatNoNodeHasJoinedMakePlaceForOthers) {
  start({.limits = {.jobs_max = 2}});
  const auto joined = connect(1, "joined");
  joined->join(nnodes(2, 2));
  joined->expect<rdzv::Waiting>();
  const auto idle = connect(2, "idle");
  idle->expect<session::ServerHello>();
  const auto honest = connect(3, "honest");
  honest->join(nnodes(1, 1));
  honest->expect<rdzv::Round>();
  const Status refused = idle->expect<rdzv::Refused>().error;
  EXPECT_EQ(refused.code(), StatusCode::kResourceExhausted) << "exit code 75: there may be room";
  EXPECT_FALSE(joined->receives<rdzv::Refused>());
}

// The 127 addresses of loopback stand for hosts.
TEST_F(CoordinatorFaultsTest, JobsOfOneAddressLeaveRoomForOtherAddresses) {
  start({.limits = {.jobs_max = 64}});
  std::vector<std::unique_ptr<SessionClient>> nodes;
  for (std::uint64_t node = 1; node <= 17; ++node) {
    nodes.push_back(connect(node, "job" + std::to_string(node)));
    nodes.back()->join(nnodes(2, 2));
    if (node < 17) nodes.back()->expect<rdzv::Waiting>();
  }
  EXPECT_THAT(std::string(nodes.back()->expect<rdzv::Refused>().error.message()),
              HasSubstr("16 jobs that 127.0.0.1 began, which is its limit"));
  os::UniqueFd fd = TestClient::make_socket();
  const auto other = os::look_up("127.0.0.2", 0);
  ASSERT_EQ(::bind(fd.get(), other->front().get(), other->front().size), 0);
  SessionClient from_elsewhere(TestClient(std::move(fd), coordinator->port()));
  from_elsewhere.greet("another");
  from_elsewhere.expect<session::ServerHello>();
}

TEST_F(CoordinatorFaultsTest, ARefusedHelloDoesNotChooseTheEndpointsOfTheJob) {
  start();
  const auto node = connect(1);
  node->expect<session::ServerHello>();
  SessionClient thief(coordinator->port());
  const std::vector<std::string> wrong = {"10.0.0.1:1"}, right = {"10.0.0.2:2"};
  thief.say_first({.job_id = "job", .node = node->info.id, .secret = {8, 8}, .endpoints = wrong});
  EXPECT_THAT(std::string(thief.expect<rdzv::Refused>().error.message()),
              HasSubstr("wrong secret"));
  SessionClient other(coordinator->port());
  other.say_first(
      {.job_id = "job", .node = {1, 2}, .secret = {2, 7}, .attempt = 1, .endpoints = right});
  other.expect<session::ServerHello>();
}

// Many nodes that have left do not push out the secret of one that begins its session.
TEST_F(CoordinatorFaultsTest, EverySessionIsProtectedByItsSecret) {
  start();
  for (std::uint64_t id = 1; id <= 270; ++id) {
    const auto node = connect(id);
    node->expect<session::ServerHello>();
    SessionClient thief(coordinator->port());
    thief.say_first({.job_id = "job", .node = node->info.id, .secret = {8, 8}, .attempt = 1 << 20});
    ASSERT_TRUE(thief.receive_one<rdzv::Refused>().has_value()) << "node " << id;
  }
}

TEST_F(CoordinatorFaultsTest, ASessionThatDoesNotReadIsClosed) {
  start({.limits = {.session_output_bytes_max = 64 << 10}});
  const auto nodes = run_round(1, nnodes(1, 1));
  os::UniqueFd fd = TestClient::make_socket();
  const int small = 4096;
  ::setsockopt(fd.get(), SOL_SOCKET, SO_RCVBUF, &small, sizeof small);
  SessionClient greedy(TestClient(std::move(fd), coordinator->port()));
  greedy.greet("greedy");
  std::string beats;
  for (int i = 0; i < 1000; ++i) {
    session::append(&beats, session::ClientMessage(session::Heartbeat{}));
  }
  int rounds = 0;
  while (rounds < 2000 && greedy.raw().send(beats)) ++rounds;
  EXPECT_LT(rounds, 2000) << "it could ask for more than the limit";
  expect_unharmed(nodes[0].get());
}

TEST_F(CoordinatorFaultsTest, CloseWaitsUntilAllSessionsReceivedTheResult) {
  start();
  auto nodes = run_round(2, nnodes(2, 2));
  for (const auto& node : nodes) node->send_message(rdzv::Done{{}, 1});
  EXPECT_EQ(nodes[0]->expect<rdzv::Closed>().result->outcome, JobOutcome::kSucceeded);
  coordinator->begin_close(seconds(60));
  EXPECT_EQ(nodes[1]->expect<rdzv::Closed>().result->outcome, JobOutcome::kSucceeded);
  const auto late = connect(7);  // receives the result too
  late->join(nnodes(2, 2));
  late->expect<rdzv::Closed>();
  late->raw().close();
  nodes[0]->raw().close();
  group.advance(seconds(50));
  EXPECT_FALSE(coordinator->is_drained());
  nodes[1]->raw().close();
  EXPECT_TRUE(group.run_until([&] { return coordinator->is_drained(); }, seconds(1)));
}

// A node's id is published in the member list, so it does not authenticate the node.
TEST_F(CoordinatorFaultsTest, AnotherClientCannotTakeTheSessionOfANode) {
  start();
  const auto nodes = run_round(2, nnodes(2, 2));
  SessionClient forger(coordinator->port());
  forger.info.id = nodes[1]->info.id;
  forger.secret = {6, 6};
  forger.greet("job");
  EXPECT_THAT(std::string(forger.expect<rdzv::Refused>().error.message()),
              testing::HasSubstr("has the wrong secret"));
  forger.send_message(rdzv::Leave{{}, "forged"});
  EXPECT_TRUE(forger.is_closed());
  EXPECT_FALSE(nodes[0]->receives<rdzv::Restart>());
  EXPECT_FALSE(nodes[1]->receives<rdzv::Evicted>());
}

TEST_F(CoordinatorFaultsTest, AHelloThatArrivesAfterItsSuccessorIsRefused) {
  start();
  const auto hello = [](std::uint64_t attempt) {
    return session::ClientHello{
        .job_id = "job", .node = {1, 5}, .secret = {5, 5}, .attempt = attempt};
  };
  SessionClient late(coordinator->port());
  SessionClient newer(coordinator->port());
  newer.say_first(hello(2));
  newer.expect<session::ServerHello>();
  late.say_first(hello(1));
  EXPECT_THAT(std::string(late.expect<rdzv::Refused>().error.message()),
              testing::HasSubstr("a later session"));
  EXPECT_FALSE(newer.receives<rdzv::Refused>()) << "its session is still open";
}

TEST_F(CoordinatorFaultsTest, OnlyANodeOfTheJobCanCloseIt) {
  start();
  const auto nodes = run_round(1, nnodes(1, 1));
  const auto client = connect(9);
  client->send_message(rdzv::Close{{}, JobResult{}});
  EXPECT_THAT(client->expect<rdzv::Evicted>().reason, testing::HasSubstr("can close it"));
  EXPECT_FALSE(nodes[0]->receives<rdzv::Closed>());
  nodes[0]->send_message(rdzv::Close{{}, JobResult{}});
  nodes[0]->expect<rdzv::Closed>();
}

TEST_F(CoordinatorFaultsTest, CloseDoesNotWaitForOpenJobs) {
  start();
  const auto nodes = run_round(1, nnodes(1, 1));
  coordinator->close(seconds(600));
  EXPECT_TRUE(nodes[0]->is_closed());
}

class CoordinatorStateTest : public CoordinatorFaultsTest {
 protected:
  void SetUp() override {
    auto made = os::TemporaryDirectory::create();
    ASSERT_TRUE(made.ok());
    folder.emplace(*std::move(made));
    options.state_file = folder->path() + "/state";
    TestClient::waits_for_threads = true;
  }
  void TearDown() override { TestClient::waits_for_threads = false; }
  std::string error_of_start() {
    const auto started = TurnedCoordinator::start(options);
    EXPECT_FALSE(started.ok());
    EXPECT_EQ(started.status().code(), StatusCode::kFailedPrecondition);
    return std::string(started.status().message());
  }

  std::optional<os::TemporaryDirectory> folder;
  CoordinatorOptions options;
};

TEST_F(CoordinatorStateTest, KeepsItsStateWhileItsStoreDrains) {
  start(options);
  const auto nodes = run_round(1, nnodes(1, 1));
  TestClient user(coordinator->port());
  user.validate();
  EXPECT_TRUE(user.ping());
  coordinator->close(seconds(60));
  start(options);
  EXPECT_THAT(coordinator->describe(), HasSubstr("round 0"));
}

// Otherwise a coordinator that is started again could give its number to another round.
TEST_F(CoordinatorStateTest, ARoundIsSentWhenItIsInTheFile) {
  start(options);
  const std::filesystem::path away = folder->path() + ".away";
  std::filesystem::rename(folder->path(), away);
  const auto node = connect(1);
  node->join(nnodes(1, 1));
  EXPECT_FALSE(node->receives<rdzv::Round>());
  std::filesystem::rename(away, folder->path());
  EXPECT_EQ(node->expect<rdzv::Round>().record->round, 1u);
  coordinator->close();
  start(options);
  EXPECT_THAT(coordinator->describe(), HasSubstr("round 0"));
}

TEST_F(CoordinatorStateTest, RestoresTheSecretsOfTheNodes) {
  start(options);
  const JobSettings settings = nnodes(1, 1);
  const auto before = run_round(1, settings);
  coordinator->close();
  start(options);
  SessionClient forger(coordinator->port());
  forger.info.id = {1, 1};
  forger.secret = {6, 6};
  forger.greet("job");
  EXPECT_THAT(std::string(forger.expect<rdzv::Refused>().error.message()),
              HasSubstr("has the wrong secret"));
  const auto node = connect(1);
  node->info.highest_round = 1;
  node->resume(settings, rdzv::NodePhase::kWorking, held(1, 1, 0));
  EXPECT_EQ(node->expect<rdzv::Resumed>().round, 1u);
}

TEST_F(CoordinatorStateTest, ARoundFollowsAFailureSoonAfterARestart) {
  start(options);
  JobSettings settings = nnodes(2, 2);
  settings.max_restarts = 1;
  settings.store_grace = seconds(3600);
  const auto before = run_round(2, settings);
  coordinator->close();
  start(options);
  std::vector<std::unique_ptr<SessionClient>> nodes;
  for (const std::uint64_t id : {1, 2}) {
    nodes.push_back(connect(id));
    nodes.back()->info.highest_round = 1;
    nodes.back()->resume(settings, rdzv::NodePhase::kWorking, held(1, 2, static_cast<int>(id) - 1));
    nodes.back()->expect<rdzv::Resumed>();
  }
  nodes[0]->send_message(rdzv::Failed{nodes[0]->info.id, 1, {}});
  for (const auto& node : nodes) {
    node->expect<rdzv::Restart>();
    node->send_message(rdzv::Gone{node->info.id, 1});
    node->join(settings);
  }
  for (const auto& node : nodes) EXPECT_EQ(node->expect<rdzv::Round>().record->round, 2u);
}

TEST(StateFile, WritesWhatItCouldNotWriteAsSoonAsItCan) {
  auto folder = os::TemporaryDirectory::create();
  ASSERT_TRUE(folder.ok());
  const std::string path = folder->path() + "/later/state";
  std::promise<Status> failed;
  auto file = StateFile::open(path, [&](const Status& error) { failed.set_value(error); });
  ASSERT_TRUE(file.ok());
  (*file)->put("state");
  EXPECT_THAT(std::string(failed.get_future().get().message()), HasSubstr("No such file"));
  std::filesystem::create_directory(folder->path() + "/later");
  const os::UniqueFd watch(::inotify_init1(IN_CLOEXEC));
  ASSERT_GE(::inotify_add_watch(watch.get(), (folder->path() + "/later").c_str(), IN_MOVED_TO), 0);
  pollfd entry{watch.get(), POLLIN, 0};
  if (!std::filesystem::exists(path)) {
    EXPECT_EQ(::poll(&entry, 1, 60'000), 1);
  }
  const auto written = os::read_file(path, 100);
  ASSERT_TRUE(written.ok());
  EXPECT_EQ(*written, "state");
}

TEST_F(CoordinatorStateTest, AFileBelongsToOneCoordinator) {
  start(options);
  EXPECT_THAT(error_of_start(), HasSubstr("another coordinator that runs uses it"));
  coordinator->close();
  start(options);
}

TEST_F(CoordinatorStateTest, AFileThatIsDamagedIsNamed) {
  start(options);
  const auto nodes = run_round(1, nnodes(1, 1));
  coordinator->close();
  std::fstream file(options.state_file, std::ios::in | std::ios::out | std::ios::binary);
  file.seekp(40);
  file.put('\x55');
  file.close();
  EXPECT_THAT(error_of_start(), HasSubstr(options.state_file + ": the state is damaged"));
}

TEST_F(CoordinatorStateTest, AFileOfAnotherVersionIsNamed) {
  start(options);
  coordinator->close();
  const auto set_version = [&](char version) {
    std::fstream file(options.state_file, std::ios::in | std::ios::out | std::ios::binary);
    file.seekp(4);
    file.put(version);
  };
  set_version('\x09');
  EXPECT_THAT(error_of_start(), HasSubstr("written by a newer version (format 9"));
  set_version('\x01');
  EXPECT_THAT(error_of_start(), HasSubstr("written by an older version (format 1"));
}

TEST_F(CoordinatorStateTest, AFileThatCannotBeWrittenIsNamedAtTheStart) {
  options.state_file = folder->path() + "/missing/state";
  EXPECT_THAT(error_of_start(), HasSubstr("No such file or directory"));
}

}  // namespace
}  // namespace elastic::host
