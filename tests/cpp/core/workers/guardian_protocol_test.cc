#include "core/workers/guardian_protocol.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cerrno>
#include <cstring>
#include <random>

namespace elastic::guardian {
namespace {

using ::testing::ElementsAre;

WorkerCommand sample_command() {
  WorkerCommand command;
  command.argv = {"prog", "", "a b"};
  command.env = {"A=1", "B="};
  command.cwd = "/w";
  command.stdout_path = "/o";
  command.cpus = {0, 65};
  return command;
}

std::string sample_requests() {
  std::string bytes;
  append_start(&bytes, 7, sample_command(), Lifetime::kHelper);
  append_request(&bytes, SignalRequest{15, SignalScope::kLeader, true, kEveryWorker});
  append_request(&bytes, SignalRequest{10, SignalScope::kGroup, false, 7});
  append_request(&bytes, CancelStartsRequest{});
  append_request(&bytes, SweepRequest{});
  append_request(&bytes, WatchRequest{std::chrono::seconds(1)});
  append_request(&bytes, StacksRequest{std::chrono::seconds(2), true});
  append_request(&bytes, drain::StopStepRequest{drain::Order::Kind::kTentative, 4, 101});
  append_request(&bytes, CutRequest{5});
  append_request(&bytes, ContinueRequest{1, 6, {"RANK=1", "A="}});
  append_request(&bytes, StopReasonRequest{"hang; rank=3"});
  return bytes;
}

// The requests as text; the views are invalid after the buffer's lifetime.
std::string describe(const Request& request) {
  if (const auto* start = std::get_if<StartRequest>(&request)) {
    std::string text = start->lifetime == Lifetime::kHelper ? "start helper " : "start ";
    text += std::to_string(start->id);
    for (const auto item : start->argv) text += " " + std::string(item);
    for (const auto item : start->env) text += " " + std::string(item);
    text += " " + std::string(start->cwd) + std::string(start->stdout_path) +
            std::string(start->stderr_path);
    for (const std::uint32_t cpu : start->cpus) text += " cpu" + std::to_string(cpu);
    return text;
  }
  if (const auto* signal = std::get_if<SignalRequest>(&request)) {
    return "signal " + std::to_string(signal->signal) + " " +
           std::to_string(static_cast<int>(signal->scope)) + (signal->is_stop ? " stop" : "") +
           (signal->id == kEveryWorker ? "" : " to " + std::to_string(signal->id));
  }
  if (const auto* watch = std::get_if<WatchRequest>(&request)) {
    return "watch " + std::to_string(watch->interval.count());
  }
  if (const auto* stacks = std::get_if<StacksRequest>(&request)) {
    return "stacks " + std::to_string(stacks->limit.count()) +
           (stacks->measures_work ? " work" : "");
  }
  if (const auto* stop = std::get_if<drain::StopStepRequest>(&request)) {
    return "stop step " + std::to_string(static_cast<int>(stop->kind)) + " " +
           std::to_string(stop->proposal) + " " + std::to_string(stop->step);
  }
  if (const auto* cut = std::get_if<CutRequest>(&request)) {
    return "cut " + std::to_string(cut->round);
  }
  if (const auto* next = std::get_if<ContinueRequest>(&request)) {
    std::string text = "continue " + std::to_string(next->id) + " " + std::to_string(next->round);
    for (const auto item : next->env) text += " " + std::string(item);
    return text;
  }
  if (const auto* reason = std::get_if<StopReasonRequest>(&request)) {
    return "stop reason " + std::string(reason->text);
  }
  return std::holds_alternative<CancelStartsRequest>(request) ? "cancel starts" : "sweep";
}

// Decodes the received bytes; returns false after a protocol violation.
bool drain(core::FrameBuffer* buffer, std::vector<std::string>* seen) {
  std::string_view payload;
  auto status = core::FrameStatus::kNeedMore;
  while ((status = buffer->next(&payload)) == core::FrameStatus::kFrame) {
    Request request;
    if (!decode_request(payload, &request)) return false;
    seen->push_back(describe(request));
  }
  return status == core::FrameStatus::kNeedMore;
}

TEST(GuardianProtocol, RequestsAreDecodedForEverySplit) {
  const std::string bytes = sample_requests();
  for (std::size_t step = 1; step <= bytes.size(); ++step) {
    core::FrameBuffer buffer(kFrameLimits);
    std::vector<std::string> seen;
    for (std::size_t at = 0; at < bytes.size(); at += step) {
      buffer.append(std::string_view(bytes).substr(at, step));
      ASSERT_TRUE(drain(&buffer, &seen));
    }
    EXPECT_THAT(seen, ElementsAre("start helper 7 prog  a b A=1 B= /w/o cpu0 cpu65",
                                  "signal 15 1 stop", "signal 10 0 to 7", "cancel starts", "sweep",
                                  "watch 1000000000", "stacks 2000000000 work", "stop step 1 4 101",
                                  "cut 5", "continue 1 6 RANK=1 A=", "stop reason hang; rank=3"));
  }
}

TEST(GuardianProtocol, StringsOfAStartAreReadyForTheKernel) {
  std::string bytes;
  append_start(&bytes, 1, sample_command());
  Request request;
  ASSERT_TRUE(decode_request(std::string_view(bytes).substr(core::kFrameHeaderBytes), &request));
  const auto& start = std::get<StartRequest>(request);
  ASSERT_EQ(start.argv.size(), 3u);
  for (const auto item : start.argv) EXPECT_EQ(std::strlen(item.data()), item.size());
  for (const auto item : start.env) EXPECT_EQ(std::strlen(item.data()), item.size());
  EXPECT_STREQ(start.stderr_path.data(), "");
}

TEST(GuardianProtocol, EventsAreDecodedAsEncoded) {
  const Instant at{Duration(123456789)};
  EndedEvent cancelled = not_started(4, Stage::kChdir, ENOENT, "/w", at);
  cancelled.exit.stopped_by_us = true;
  cancelled.exit.start_timeout = std::chrono::seconds(30);
  WorkerExit dumped;
  dumped.kind = ExitKind::kSignaled;
  dumped.signal = 11;
  dumped.core_dumped = dumped.stopped_by_us = dumped.killed_by_us = true;
  dumped.at = at;
  dumped.stop_step = 101;
  dumped.last_step = 99;
  const Event events[] = {
      HelloEvent{9},
      StartedEvent{3, 42, at},
      cancelled,
      EndedEvent{5, dumped},
      KillSentEvent{77, false},
      LeftoverEvent{true, 2, 78, "sleep 9"},
      SweptEvent{},
      TemplateEvent{TemplateNews::kExecuted, 6, at, "late"},
      ProgressEvent{8, 100, 99, 3, std::chrono::seconds(7), std::chrono::milliseconds(20),
                    std::chrono::seconds(600), false, 7, std::chrono::seconds(14)},
      StacksEvent{3, 99, 'S', "futex_wait", "in all_reduce",
                  "0\tdefault_pg\t4\t4\t1\tbarrier\t[]\n", "0\t0-1\n", std::chrono::seconds(3),
                  4096, true},
      StacksDoneEvent{},
      MarkEvent{2, Mark::kFirstStep, at, 91},
      MarkEvent{2, Mark::kLeft, at, 91},
      MarkEvent{2, Mark::kRaised, at},
      drain::StopStepEvent{drain::Reply::Kind::kReached, 4, {0, 7}, 101, 100, 2, 101, 102},
      SignaturesEvent{3, true, "179587129\t0\t0\tdp\t64\tr0f3a", "0\t0-3\n"},
      snapshot::HeldEvent{
          {{3, 4, 1204, 1, 0xFFFFFFFF}, {.rank = 3, .step = 1205, .is_replicated = true}},
          1 << 20,
          2 << 20,
          3 << 20,
          "a notice"},
  };
  for (const Event& event : events) {
    std::string bytes;
    append_event(&bytes, event);
    Event decoded;
    ASSERT_TRUE(decode_event(std::string_view(bytes).substr(core::kFrameHeaderBytes), &decoded));
    EXPECT_TRUE(decoded == event) << event.index();
  }
}

TEST(GuardianProtocol, StartNamesItsKindAndTheWaitForTheTemplate) {
  std::string bytes;
  append_start(&bytes, 1, sample_command(), Lifetime::kWorker, 0, StartKind::kFork, Duration(5));
  Request request;
  ASSERT_TRUE(decode_request(std::string_view(bytes).substr(core::kFrameHeaderBytes), &request));
  EXPECT_EQ(std::get<StartRequest>(request).kind, StartKind::kFork);
  EXPECT_EQ(std::get<StartRequest>(request).template_wait, Duration(5));
}

TEST(GuardianProtocol, LengthsAreCheckedBeforeTheBytesArrive) {
  for (const std::uint32_t length : {std::uint32_t{0}, std::uint32_t{kFrameBytesMax + 1}, ~0u}) {
    core::FrameBuffer buffer(kFrameLimits);
    std::string_view payload;
    buffer.append({reinterpret_cast<const char*>(&length), sizeof length});
    EXPECT_EQ(buffer.next(&payload), core::FrameStatus::kViolation) << length;
  }
}

TEST(GuardianProtocol, ListCannotAnnounceMoreThanItsFrameHolds) {
  std::string bytes;
  append_start(&bytes, 1, sample_command());
  // Behind the message, id, kind, lifetime, passed, template_wait and has_channel.
  const std::size_t count_at = core::kFrameHeaderBytes + 1 + 4 + 1 + 1 + 1 + 8 + 1;
  ASSERT_EQ(bytes[count_at], 3);
  const std::uint32_t many = 60000;
  std::memcpy(bytes.data() + count_at, &many, sizeof many);
  Request request;
  EXPECT_FALSE(decode_request(std::string_view(bytes).substr(core::kFrameHeaderBytes), &request));
}

struct BadStart {
  const char* name;
  std::vector<std::string> argv;
};

TEST(GuardianProtocol, StartWithoutAProgramOrWithANulIsMalformed) {
  const BadStart cases[] = {
      {"no arguments", {}}, {"empty program", {""}}, {"a NUL", {"p", std::string("a\0b", 3)}}};
  for (const BadStart& bad : cases) {
    WorkerCommand command;
    command.argv = bad.argv;
    std::string bytes;
    append_start(&bytes, 1, command);
    Request request;
    EXPECT_FALSE(decode_request(std::string_view(bytes).substr(core::kFrameHeaderBytes), &request))
        << bad.name;
  }
}

TEST(GuardianProtocol, TheIdThatStandsForEveryWorkerIsNoProcess) {
  std::string bytes;
  append_start(&bytes, kEveryWorker, sample_command());
  Request request;
  EXPECT_FALSE(decode_request(std::string_view(bytes).substr(core::kFrameHeaderBytes), &request));
}

TEST(GuardianProtocol, TruncatedOrExtendedMessagesAreMalformed) {
  std::string requests[8];
  append_start(&requests[0], 7, sample_command());
  append_request(&requests[1], SignalRequest{15, SignalScope::kLeader, true, kEveryWorker});
  append_request(&requests[2], CancelStartsRequest{});
  append_request(&requests[3], SweepRequest{});
  append_request(&requests[4], drain::StopStepRequest{drain::Order::Kind::kCommit, 4, 101});
  append_request(&requests[5], CutRequest{5});
  append_request(&requests[6], ContinueRequest{1, 6, {"RANK=1"}});
  append_request(&requests[7], StopReasonRequest{"hang; rank=3"});
  for (const std::string& bytes : requests) {
    const std::string payload = bytes.substr(core::kFrameHeaderBytes);
    Request request;
    for (std::size_t length = 0; length < payload.size(); ++length) {
      EXPECT_FALSE(decode_request(std::string_view(payload).substr(0, length), &request)) << length;
    }
    EXPECT_FALSE(decode_request(payload + '\0', &request));
  }
}

TEST(GuardianProtocol, GarbageIsRejected) {
  std::mt19937 random(20240607);
  const std::string good = sample_requests();
  for (int round = 0; round < 20000; ++round) {
    std::string bytes = good;
    for (int change = 0; change < 1 + round % 4; ++change) {
      bytes[random() % bytes.size()] = static_cast<char>(random());
    }
    core::FrameBuffer buffer(kFrameLimits);
    std::vector<std::string> seen;
    buffer.append(bytes);
    drain(&buffer, &seen);
    EXPECT_LE(seen.size(), 11u);
    Event event;
    decode_event(bytes, &event);
  }
}

TEST(GuardianProtocol, NulIsFoundInEveryStringOfACommand) {
  const std::string nul("x\0", 2);
  EXPECT_FALSE(contains_nul(sample_command()));
  for (int field = 0; field < 5; ++field) {
    WorkerCommand command = sample_command();
    std::string* const fields[] = {&command.argv[1], &command.env[1], &command.cwd,
                                   &command.stdout_path, &command.stderr_path};
    *fields[field] = nul;
    EXPECT_TRUE(contains_nul(command)) << field;
  }
}

}  // namespace
}  // namespace elastic::guardian
