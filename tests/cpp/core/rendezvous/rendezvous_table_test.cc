// The table of responses: the machine's response to each message in each state. The documentation
// must show the same table.

#include "core/rendezvous/rendezvous_events.h"

#include <gmock/gmock.h>

#include <fstream>
#include <sstream>

#include "core/base/random.h"
#include "core/rendezvous/rendezvous_harness.h"
#include "core/rendezvous/rendezvous_names.h"

namespace elastic::test {
namespace {

using core::NodeMessage;
using core::NodeRow;
using core::Response;

std::string table_text() {
  std::string text = "| node is |";
  for (const std::string_view message : core::kNodeMessageNames)
    text += " " + std::string(message) + " |";
  text += "\n|---|";
  for (std::size_t i = 0; i < core::kNodeMessages; ++i) text += "---|";
  text += "\n";
  for (std::size_t row = 0; row < core::kNodeRows; ++row) {
    text += "| " + std::string(core::kNodeRowNames[row]) + " |";
    for (const Response response : core::kResponses[row]) {
      text += " " + std::string(core::kResponseNames[static_cast<std::size_t>(response)]) + " |";
    }
    text += "\n";
  }
  return text;
}

TEST(RendezvousTable, DocumentShowsTheTable) {
  std::ifstream file(ELASTIC_TEST_DOCS "rendezvous.md");
  std::stringstream page;
  page << file.rdbuf();
  EXPECT_THAT(page.str(), testing::HasSubstr(table_text())) << "put this into docs/rendezvous.md:\n"
                                                            << table_text();
}

// Makes a job of up to three nodes in which node x is in the given state and another node works.
void bring_about(NodeRow row, Job* job) {
  switch (row) {
    case NodeRow::kAbsent: job->join_all({"a", "b", "c"}); break;
    case NodeRow::kJoined:
      job->join_all({"a", "b", "c"});
      job->join("x");
      break;
    case NodeRow::kWorking: job->join_all({"a", "b", "x"}); break;
    case NodeRow::kStopped:
      job->join_all({"a", "b", "x"});
      job->leave("a");
      job->gone("x");
      break;
    case NodeRow::kDone:
      job->join_all({"a", "b", "x"});
      job->done("x");
      break;
    case NodeRow::kAbsentClosed:
    case NodeRow::kPresentClosed:
      job->join_all(row == NodeRow::kPresentClosed ? std::vector<std::string>{"a", "b", "x"}
                                                   : std::vector<std::string>{"a", "b", "c"});
      job->step(rdzv::Close{job->id("a"), {}});
      break;
  }
}

Sent send(NodeMessage message, Job* job) {
  switch (message) {
    case NodeMessage::kJoin: return job->join("x");
    case NodeMessage::kFailed: return job->step(rdzv::Failed{job->id("x"), job->round(), {}});
    case NodeMessage::kGone: return job->gone("x");
    case NodeMessage::kDone: return job->done("x");
    case NodeMessage::kLeave: return job->leave("x");
    case NodeMessage::kClose: return job->step(rdzv::Close{job->id("x"), {}});
    case NodeMessage::kHeartbeat: return job->beat("x");
    case NodeMessage::kSessionLost: return job->cut("x");
    case NodeMessage::kProcessEnded: job->cut("x"); return job->end("x");
  }
  return Sent({});
}

bool is_waiting(Job* job, const Sent& sent) {
  return job->action_to<rdzv::Waiting>(sent, "x") != nullptr;
}

// Checks the visible effect of a response.
void expect_effect(Response response, NodeRow row, Job* job, const Sent& sent) {
  const auto sends = [&] { return job->beat("x"); };
  switch (response) {
    case Response::kAdmit:
      EXPECT_TRUE(is_waiting(job, sent) || job->action_to<rdzv::Closed>(sent, "x") != nullptr);
      break;
    case Response::kRefresh:
    case Response::kEnqueue:
    case Response::kResend: EXPECT_TRUE(is_waiting(job, sent)); break;
    case Response::kFail:
      EXPECT_EQ(job->action_to<rdzv::Restart>(sent, "b") != nullptr, row == NodeRow::kWorking);
      break;
    case Response::kStop:
      EXPECT_EQ(job->action_to<rdzv::Restart>(sent, "b") != nullptr, row == NodeRow::kWorking);
      EXPECT_EQ(job->action_to<rdzv::Evicted>(sends(), "x"), nullptr);
      break;
    case Response::kFinish:
      EXPECT_TRUE(is_waiting(job, sent));
      EXPECT_TRUE(job->is_running());
      break;
    case Response::kLeave:
      EXPECT_EQ(job->action_to<rdzv::Restart>(sent, "b") != nullptr, row == NodeRow::kWorking);
      EXPECT_EQ(job->action_to<rdzv::Closed>(sent, "x"), nullptr);
      break;
    case Response::kClose:
    case Response::kSendResult: EXPECT_TRUE(job->is_closed()); break;
    case Response::kAlive:
    case Response::kIgnore: EXPECT_TRUE(sent.nothing()); break;
    case Response::kSuspect:
      EXPECT_TRUE(sent.nothing());
      EXPECT_NE(job->action_to<rdzv::Evicted>(job->pass_and_tick(50ms), "x"), nullptr);
      break;
    case Response::kLose:
      EXPECT_NE(job->action_to<rdzv::Evicted>(sent, "x"), nullptr);
      EXPECT_EQ(job->action_to<rdzv::Restart>(sent, "b") != nullptr, row == NodeRow::kWorking);
      break;
    case Response::kEvict: EXPECT_NE(job->action_to<rdzv::Evicted>(sent, "x"), nullptr); break;
  }
}

TEST(RendezvousTable, MachineFollowsTheTable) {
  for (std::size_t row = 0; row < core::kNodeRows; ++row) {
    for (std::size_t message = 0; message < core::kNodeMessages; ++message) {
      SCOPED_TRACE(std::string(core::kNodeMessageNames[message]) + " of a node that is " +
                   std::string(core::kNodeRowNames[row]));
      Job job(with(nnodes(1, 3), [](JobSettings& s) { s.max_restarts = 3; }));
      bring_about(static_cast<NodeRow>(row), &job);
      const Sent sent = send(static_cast<NodeMessage>(message), &job);
      expect_effect(core::kResponses[row][message], static_cast<NodeRow>(row), &job, sent);
    }
  }
}

// Random events in random order, most of them invalid in their state, break no invariant.
TEST(RendezvousTable, AnyEventIsHandledInAnyState) {
  const std::vector<std::string> names = {"a", "b", "c", "x"};
  for (std::uint64_t seed = 0; seed < 300; ++seed) {
    SCOPED_TRACE("seed " + std::to_string(seed));
    Rng rng(seed);
    const auto next = [&](std::uint64_t below) { return rng.next() % below; };
    Job job(with(nnodes(static_cast<int>(1 + next(3)), 3), [&](JobSettings& s) {
      s.max_restarts = static_cast<int>(next(4));
      s.settle = Duration(static_cast<Duration::rep>(next(2'000'000'000)));
    }));
    for (int i = 0; i < 60; ++i) {
      const std::string& name = names[next(names.size())];
      switch (next(13)) {
        case 0:
        case 1: job.join(name); break;
        case 2: job.fail(name); break;
        case 3: job.gone(name); break;
        case 4: job.done(name); break;
        case 5: job.leave(name); break;
        case 6: job.cut(name); break;
        case 7: job.resume(name, static_cast<rdzv::NodePhase>(next(4))); break;
        case 8: job.step(rdzv::Gone{job.id(name), next(4)}); break;
        case 9:
          job.run(Duration(static_cast<Duration::rep>(next(9'000'000'000))), [&] {
            for (const std::string& one : names) job.beat(one);
          });
          break;
        case 10: job.rejoin(name); break;
        case 11: job.beat(name); break;
        case 12: job.end(name); break;
      }
      EXPECT_FALSE(job.describe().empty());
    }
  }
}

}  // namespace
}  // namespace elastic::test
