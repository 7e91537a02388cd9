#pragma once

// One message of each kind, for the tests of the session protocol.

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "core/session/session_wire.h"
#include "elastic/observer.h"

namespace elastic::session {

using std::chrono::milliseconds;
using std::chrono::seconds;

inline core::NodeInfo node_info() {
  core::NodeInfo node;
  node.id = {0x1122334455667788, 0x99AABBCCDDEEFF00};
  node.name = "10.0.0.7_4242_0";
  node.address = "10.0.0.7";
  node.store_port = 31337;
  node.local_world_size = 8;
  node.role = "reader";
  node.previous_rank = 3;
  node.highest_round = 9;
  node.static_rank = 2;
  node.topology = "rack7";
  node.probe_port = 40'001;
  node.stop_grace = seconds(11);
  node.failure_grace = milliseconds(500);
  node.hosts_coordinator = true;
  return node;
}

inline JobSettings settings() {
  JobSettings settings;
  settings.min_nodes = 2;
  settings.max_nodes = 4;
  settings.max_restarts = 5;
  settings.max_membership_changes = 7;
  settings.on_loss = LossPolicy::kFail;
  settings.extra = {{"version", "1"}, {"entry", "train.py"}};
  settings.join_timeout = seconds(1);
  settings.last_call_timeout = seconds(2);
  settings.settle = seconds(3);
  settings.shrink_delay = seconds(4);
  settings.node_timeout = seconds(5);
  settings.reconnect_grace = seconds(6);
  settings.store_grace = seconds(7);
  return settings;
}

inline RoundRecord record() {
  RoundRecord record;
  record.term = 2;
  record.round = 12;
  record.generation = 3;
  record.nodes = 4;
  record.world_size = 32;
  record.master_addr = "10.0.0.7";
  record.master_port = 31337;
  record.restarts = 1;
  record.membership_changes = 2;
  record.coordinator_rank = 0;
  record.members_digest = 0xFEEDFACE;
  return record;
}

inline StopReason stop_reason() {
  return {StopCause::kWorkerFailed, 3, "node7", 9, FailureClass::kPlatform, "rank 3 was killed"};
}

inline FailureReport failure() {
  return {1, 9, 137, "was killed by SIGKILL", Instant(seconds(99))};
}

inline JobResult result() {
  return {JobOutcome::kFailed,  JobCause::kWorker,    3,         9, "10.0.0.7_4242_0", {4, 2},
          "exited with code 3", {"lost_1", "lost_2"}, {"done_1"}};
}

inline WorkerReport worker_report() {
  return {12,
          "node7",
          {{0, 8, 4711, ObservedWorkerState::kRunning, 0},
           {1, 9, 4712, ObservedWorkerState::kFailed, 137}}};
}

inline ObservedNode observed_node() {
  return {.id = node_info().id,
          .name = "node7_4242",
          .address = "10.0.0.7",
          .role = "reader",
          .local_world_size = 2,
          .phase = rdzv::NodePhase::kWorking,
          .rank = 1,
          .is_suspect = true,
          .hosts_coordinator = true,
          .silence = milliseconds(250),
          .report = worker_report()};
}

inline ObservedJob observed_job() {
  ObservedJob job;
  job.id = "job";
  job.term = 2;
  job.coordinator = 77;
  job.incumbent = CoordinatorInfo{
      .address = "10.0.0.1:29401", .lineage = "ab", .term = 2, .voters = {"10.0.0.1:29402"}};
  job.now = Instant(seconds(100));
  job.wall_time = 1'700'000'000'000'000'000;
  job.phase = RendezvousPhase::kClosed;
  job.description = "round 1 runs on 2 nodes";
  job.settings = settings();
  job.record = record();
  job.waiting_nodes = 1;
  job.spare_nodes = 2;
  job.began = Instant(seconds(9));
  job.running = seconds(80);
  job.rounds = {{.round = 12,
                 .nodes = 4,
                 .world_size = 32,
                 .restarts = 1,
                 .formed = Instant(seconds(9)),
                 .ended = Instant(seconds(99)),
                 .first_step = Instant(seconds(10)),
                 .failed = Instant(seconds(98)),
                 .stopped = Instant(seconds(100)),
                 .cause = rdzv::RestartCause::kWorkerFailed,
                 .reason = "rank 9 exited with code 3",
                 .node = "node7_4242",
                 .rank = 9,
                 .exit_code = 3,
                 .rule = "rule 2 (line 7) of the failure policy"},
                {.round = 13}};
  job.stragglers = {{.rank = 9, .node = "node7_4242", .step = 99, .idle = seconds(61)}};
  job.hang = ObservedHang{seconds(61), 99, 9, "in read (data.py:41)"};
  job.findings = {{.host = "node8", .text = "check gpu: unknown: no driver", .age = seconds(5)}};
  job.excluded = {{.host = "node8", .left = seconds(3600), .reason = "fan", .times = 2}};
  job.saved = ObservedSave{.step = 98, .age = seconds(3)};
  job.saved->memory = {.own = 7, .copies = 5, .node = {1, 2}, .needed = 3, .limit = 9};
  job.stall =
      ObservedStall{seconds(14), 9, "rank 9 has not entered all_reduce #4", "in read (a:1)"};
  job.progress = ObservedProgress{.step = 99, .slowest = 98, .ranks = 32, .step_time = seconds(2)};
  job.result = result();
  return job;
}

inline hang::StackGroup stack_group() {
  return {.ranks = {8, 9},
          .oldest = 99,
          .kind = hang::StackGroup::Kind::kWaiting,
          .label = "in all_reduce (train.py:88)",
          .text = "  File \"train.py\", line 88 in train\n"};
}

inline std::vector<ClientMessage> client_messages() {
  const rdzv::Resume bare{node_info(), settings(), rdzv::NodePhase::kJoined, {}, {}};
  const rdzv::Resume full{
      node_info(), settings(), rdzv::NodePhase::kStopped,
      core::HeldRound{record(), 2,
                      std::make_shared<const RoundCause>(RoundCause{stop_reason(), 2, 7})},
      failure()};
  return {ClientHello{.capabilities = 5,
                      .term = 3,
                      .job_id = "job",
                      .node = node_info().id,
                      .secret = {0xA1A2A3A4A5A6A7A8, 0xB1B2B3B4B5B6B7B8},
                      .attempt = 9},
          Heartbeat{Instant(seconds(3))},
          rdzv::Join{node_info(), settings()},
          bare,
          full,
          rdzv::Failed{{}, 12, failure()},
          rdzv::Gone{{}, 12},
          rdzv::Done{{}, 13},
          rdzv::Leave{{}, "told to stop by SIGTERM"},
          rdzv::Close{{}, result()},
          Workers{worker_report()},
          ObserverReady{},
          hang::NodeProgress{.round = 12,
                             .reporting = 8,
                             .newest = 100,
                             .oldest = 99,
                             .slowest_rank = 9,
                             .slowest_idle = seconds(61),
                             .idle = milliseconds(20),
                             .section_limit = seconds(600),
                             .limit = seconds(5),
                             .action = hang::Action::kRestart,
                             .has_advanced = false,
                             .waiting = 7,
                             .waited = seconds(14),
                             .saved_step = 98,
                             .saved_age = milliseconds(300),
                             .saved_memory = {1 << 20, 2 << 20, 3 << 20, 5 << 20}},
          hang::NodeStacks{.request = 3,
                           .host = "node7",
                           .groups = {stack_group()},
                           .collectives = {{.ranks = "8-10,12",
                                            .group = "2",
                                            .description = "dp1",
                                            .members = "8-15",
                                            .last = 1204,
                                            .open = 1203,
                                            .operation = "all_reduce",
                                            .sizes = "[[1024]]",
                                            .waiting = std::chrono::seconds(14)}},
                           .idle = {8, 9}},
          hang::NodeSignatures{.round = 12,
                               .sample = 179587129,
                               .blocks = {{.ranks = "8-10,12",
                                           .group = "2",
                                           .description = "dp1",
                                           .recorder = 1,
                                           .first = 64,
                                           .signature = "r0f3a-----"}}},
          RequestStacks{},
          hang::RankFinished{.round = 12, .rank = 9, .limit = seconds(60), .age = seconds(3)},
          gate::Finding{.host = "node7",
                        .check = "gpu",
                        .verdict = gate::Verdict::kBad,
                        .reason = "GPU 3 needs a reset",
                        .age = seconds(2)},
          drain::Notice{seconds(30), "SIGTERM", drain::Departure{{{1, 2}, {3, 4}}, true}},
          drain::Reply{.kind = drain::Reply::Kind::kReached,
                       .round = 12,
                       .proposal = 3,
                       .newest = 100,
                       .oldest = 99,
                       .num_silent = 1,
                       .silent = {9},
                       .held = 101,
                       .is_committed = true,
                       .stopped = 7,
                       .first_stop = 101,
                       .last_stop = 101,
                       .can_continue = true},
          snapshot::CopyReport{.round = 12,
                               .group_rank = 1,
                               .address = "10.0.0.1:40000",
                               .host = "node1",
                               .domain = "rack2",
                               .own = {{4, 11}, {5, 12}},
                               .copied = {{4, 11}},
                               .target = {5, 12}},
          RequestDrain{{seconds(60), "elastic-launch drain on node9"}, "node8"},
          RequestHost{"node8", "ann on node9: fan", true},
          gate::ProbeReport{.check = 7,
                            .round = 2,
                            .has_answered = true,
                            .bytes_per_second = 9'800'000'000,
                            .latency = std::chrono::microseconds(25),
                            .error = "refused"},
          ClientHello{.observer = ObserverRequest{true}},
          ClientHello{.job_id = "job", .announced = {{{1, 2}, 3, {4, 5}, "10.0.0.1:29401", {}}}},
          OpenedPorts{.address = "10.0.0.1:4", .error = "no port is free"}};
}

inline std::vector<ServerMessage> server_messages() {
  return {
      ServerHello{.capabilities = 6, .term = 4, .incarnation = 77, .time = Instant(seconds(8))},
      HeartbeatReply{Instant(seconds(3)), Instant(seconds(8))},
      Counts{2, 1},
      rdzv::Round{{}, std::make_shared<const RoundRecord>(record()), {1, 8, 8, 8, 32}},
      rdzv::Restart{{}, 12, rdzv::RestartCause::kGrowth, "2 nodes joined", seconds(4)},
      rdzv::Waiting{{}, "1 of 2 nodes, gives up", seconds(9)},
      rdzv::Resumed{{}, 12},
      rdzv::Evicted{{}, 12, "no sign of life for 5 s"},
      rdzv::Refused{{}, Status(StatusCode::kInvalidArgument, "nnodes=2, the job has nnodes=3")},
      rdzv::TimedOut{{}, "gave up after 10 min"},
      rdzv::Closed{{}, std::make_shared<const JobResult>(result())},
      rdzv::RoundOver{{}, 12},
      Timings{settings()},
      Leaving{"its job succeeded"},
      Incumbent{{{1, 2}, 3, {4, 5}, "10.0.0.1:29401", {{{4, 5}, "10.0.0.1:29402"}}}, true},
      StoreClients{.round = 4, .addresses = {"10.0.0.1", "fe80::2"}},
      ServerHello{.host_job = "another job"},
      Incumbent{{{1, 2}, 3, {4, 5}, "10.0.0.1:29401", {}}, true, "the job runs already"},
      WatchWorkers{true},
      hang::StacksWanted{3, true},
      hang::Verdict{12, "the job hangs", "hung: in read (data.py:41)", 9, hang::Action::kFail,
                    hang::Verdict::Kind::kMismatch},
      StacksReport{"stacks of round 11"},
      drain::Order{.kind = drain::Order::Kind::kTentative,
                   .round = 12,
                   .proposal = 3,
                   .step = 101,
                   .notice = {seconds(30), "SIGTERM", drain::Departure{{{1, 2}}, false}}},
      drain::News{"every rank stops at step 101", drain::News::About::kReadmission},
      snapshot::CopyOrder{.round = 12,
                          .step = {5, 12},
                          .base = {4, 11},
                          .buddy = {"10.0.0.2:40000", "node2"},
                          .more = {{"10.0.0.3:40000", "node3"}},
                          .hold = 1024},
      gate::ProbeOrder{.check = 7, .round = 2, .address = "10.0.0.2:40000", .node = "node2_7"},
      gate::NetworkFinding{{"node7", "network", gate::Verdict::kBad, "it is slow", seconds(2)}},
      DrainReport{true, "every rank stops at step 101"},
      HostReport{true, "host node8 is excluded for 1 h"},
      JobFacts{observed_job()},
      NodePage{true, {observed_node()}, {{1, 2}, {3, 4}}},
      Beats{{0, 17, 5000}},
      Incumbent{
          {.lineage = {1, 2}, .term = 3, .node = {4, 5}, .address = "10.0.0.1:29401", .voters = {}},
          false},
      HeartbeatReply{Instant(seconds(3)), Instant(seconds(8)), seconds(2)},
      OpenPorts{{{1, 2}, 3, {4, 5}, "10.0.0.1:29401", {{{4, 5}, "10.0.0.1:29402"}}}},
      rdzv::Round{{},
                  std::make_shared<const RoundRecord>(record()),
                  {1, 8, 8, 8, 32},
                  std::make_shared<const RoundCause>(RoundCause{stop_reason(), 2, 7})},
      rdzv::Restart{
          {}, 12, rdzv::RestartCause::kWorkerFailed, "rank 3", seconds(4), stop_reason()}};
}

}  // namespace elastic::session
