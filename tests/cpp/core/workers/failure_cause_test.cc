#include "core/workers/failure_cause.h"
#include "core/base/text.h"

#include <gtest/gtest.h>

#include <cerrno>
#include <chrono>
#include <csignal>
#include <optional>
#include <string>

#include "core/workers/worker_exits.h"

namespace elastic::core {
namespace {

constexpr std::string_view kUncaught =
    "step 7\n"
    "Traceback (most recent call last):\n"
    "  File \"train.py\", line 3, in <module>\n"
    "    main()\n"
    "  File \"train.py\", line 2, in main\n"
    "    raise KeyError('x')\n"
    "KeyError: 'x'\n";

TEST(LastException, IsTheOneThatEndedTheProcess) {
  EXPECT_EQ(last_exception(kUncaught), "KeyError: 'x'");
  std::string chained(kUncaught);
  chained +=
      "\nDuring handling of the above exception, another exception occurred:\n\n"
      "Traceback (most recent call last):\n"
      "  File \"train.py\", line 9, in <module>\n"
      "torch.distributed.DistBackendError: NCCL error\nmore text\n";
  EXPECT_EQ(last_exception(chained), "torch.distributed.DistBackendError: NCCL error");
  EXPECT_EQ(last_exception("[rank3]: Traceback (most recent call last):\n"
                           "[rank3]:   File \"t.py\", line 1, in <module>\n"
                           "[rank3]: ValueError: bad\n"),
            "ValueError: bad");
  EXPECT_EQ(last_exception("Traceback (most recent call last):\n  File"), "") << "incomplete";
  EXPECT_EQ(last_exception("no traceback\nKeyError: 1\n"), "");
}

TEST(LostPeer, IsWhatTheConnectionToAnotherRankReports) {
  EXPECT_TRUE(is_lost_peer(
      "RuntimeError: [/gloo/transport/tcp/pair.cc:537] Read error [10.0.0.1]:43912: Connection "
      "reset by peer. This is typically caused by a remote worker"));
  EXPECT_TRUE(is_lost_peer("RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.1]:1"));
  EXPECT_TRUE(is_lost_peer("torch.distributed.DistNetworkError: failed to send: Broken pipe"));
  EXPECT_TRUE(
      is_lost_peer("torch.distributed.DistBackendError: NCCL error: remote process exited or there "
                   "was a network "
                   "error, NCCL version 2.27"));
  EXPECT_FALSE(is_lost_peer("ValueError: loss is nan"));
  EXPECT_FALSE(is_lost_peer("ConnectionResetError: [Errno 104] Connection reset by peer"));
  EXPECT_FALSE(is_lost_peer("BrokenPipeError: [Errno 32] Broken pipe"));
  EXPECT_FALSE(is_lost_peer("torch.OutOfMemoryError: CUDA out of memory"));
  EXPECT_FALSE(is_lost_peer(""));
}

TEST(LastException, IsTheOriginalOneIfALoadersWorkerFailed) {
  const auto text = [](const std::string& prefix) {
    std::string out = prefix + "Traceback (most recent call last):\n";
    for (const char* line :
         {"  File \"train.py\", line 3, in <module>",
          "ValueError: Caught ValueError in DataLoader worker process 0.",
          "Original Traceback (most recent call last):",
          "  File \"worker.py\", line 349, in _worker_loop", "    data = fetcher.fetch(index)",
          "ValueError: sample 0 of shard-0007.tar is truncated"}) {
      out += prefix + line + "\n";
    }
    return out;
  };
  for (const std::string prefix : {"", "[rank1]: "}) {
    EXPECT_EQ(last_exception(text(prefix)), "ValueError: sample 0 of shard-0007.tar is truncated");
    EXPECT_TRUE(is_uncaught_exception(text(prefix)));
  }
  EXPECT_EQ(error_file_message(
                R"({"message": {"message": "ValueError: Caught ValueError in DataLoader worker )"
                R"(process 0.\nOriginal Traceback (most recent call last):\n  File \"w.py\", line )"
                R"(1, in f\nKeyError: 'x'\n"}})"),
            "KeyError: 'x'");
}

TEST(LastException, IsThatOfTheMainModuleIfOthersFollow) {
  for (const std::string_view later :
       {"Error in atexit._run_exitfuncs:\nTraceback (most recent call last):\n"
        "  File \"a.py\", line 1, in stop\nOSError: closed\n",
        "Exception in thread Thread-1:\nTraceback (most recent call last):\n"
        "  File \"threading.py\", line 1, in _bootstrap_inner\nBrokenPipeError: gone\n"}) {
    const std::string output = std::string(kUncaught) + std::string(later);
    EXPECT_EQ(last_exception(output), "KeyError: 'x'") << later;
    EXPECT_TRUE(is_uncaught_exception(output)) << later;
    EXPECT_FALSE(is_uncaught_exception(later));
  }
}

TEST(LastException, IsFoundInOtherForms) {
  const auto found = [](std::string_view output) {
    EXPECT_TRUE(is_uncaught_exception(output)) << output;
    return last_exception(output);
  };
  EXPECT_EQ(found("  File \"/t.py\", line 1\n    def f(:\n          ^\n"
                  "SyntaxError: invalid syntax\n"),
            "SyntaxError: invalid syntax");
  EXPECT_EQ(found("/usr/bin/python3: No module named trainer\n"), "No module named trainer");
  EXPECT_EQ(found("/usr/bin/python3: Error while finding module specification for 'pkg.a' "
                  "(ModuleNotFoundError: No module named 'pkg')\n"),
            "No module named 'pkg'");
  EXPECT_EQ(found("  + Exception Group Traceback (most recent call last):\n"
                  "  |   File \"t.py\", line 1, in <module>\n"
                  "  |     raise ExceptionGroup('g', [ValueError(1)])\n"
                  "  | ExceptionGroup: g (1 sub-exception)\n"
                  "  +-+---------------- 1 ----------------\n"
                  "    | ValueError: 1\n"
                  "    +------------------------------------\n"),
            "ExceptionGroup: g (1 sub-exception)");
  EXPECT_EQ(found("╭──── Traceback (most recent call last) ────╮\n"
                  "│ /t.py:1 in <module>                       │\n"
                  "╰───────────────────────────────────────────╯\n"
                  "ZeroDivisionError: division by zero\n"),
            "ZeroDivisionError: division by zero");
  EXPECT_EQ(last_exception("SyntaxError: printed by the program\n"), "");
  EXPECT_EQ(last_exception("apt: No module named x\n"), "");
  EXPECT_EQ(diagnose(exited(1), "python: No module named x\n", "", {}).failure_class,
            FailureClass::kUserInput);
}

TEST(UncaughtException, BeginsInTheMainModule) {
  EXPECT_TRUE(is_uncaught_exception(kUncaught));
  EXPECT_TRUE(
      is_uncaught_exception("Traceback (most recent call last):\n"
                            "  File \"<frozen runpy>\", line 196, in _run_module_as_main\n"
                            "OSError: gone\n"));
  EXPECT_FALSE(
      is_uncaught_exception("Exception in thread Thread-1:\n"
                            "Traceback (most recent call last):\n"
                            "  File \"threading.py\", line 1, in _bootstrap_inner\n"
                            "KeyError: 1\n"));
  EXPECT_FALSE(
      is_uncaught_exception("ERROR: retrying\n"
                            "Traceback (most recent call last):\n"
                            "  File \"data.py\", line 7, in fetch\n"
                            "TimeoutError: slow\n"))
      << "the program logged it and continued";
}

TEST(ErrorFileMessage, IsReadFromWholeAndPartialFiles) {
  EXPECT_EQ(
      error_file_message(R"({"message": {"message": "KeyError: \"x\"\nmore", "extraInfo": {}}})"),
      "KeyError: \"x\"");
  EXPECT_EQ(error_file_message(R"({"message": "plain", "timestamp": 1})"), "plain");
  EXPECT_EQ(error_file_message(R"({"message": {"message": "half wri)"), "half wri");
  EXPECT_EQ(error_file_message(R"({"message": {)"), "");
  EXPECT_EQ(error_file_message(""), "");
  EXPECT_EQ(error_file_message("{\"message\": \"a\\"), "a\\");
}

TEST(ErrorFileMessage, ShowsEscapedCharacters) {
  // As Python's json writes everything outside ASCII.
  EXPECT_EQ(error_file_message(R"({"message": "caf\u00e9 \u65e5 \ud83d\ude00 \"a\\b\/\t"})"),
            "caf\u00e9 \u65e5 \U0001f600 \"a\\b/\t");
  EXPECT_EQ(error_file_message(R"({"message": "\ud83d, \ude00, \ud83d\u0041, \u12"})"),
            "\ufffd, \ufffd, \ufffdA, u12");
  // A cut is between two characters.
  std::string json = "{\"message\": \"a";
  for (int i = 0; i < 1000; ++i) json += "\\u00e9";
  EXPECT_EQ(error_file_message(json).size(), 511);
}

TEST(Diagnosis, TellsWhoHasToAct) {
  const auto of = [](const WorkerExit& exit, std::string_view output = "",
                     const KernelEvidence& kernel = {}) {
    const FailureEvidence found = diagnose(exit, output, "", kernel);
    return std::string(to_string(found.failure_class)) + ": " + to_string(found.cause);
  };
  EXPECT_EQ(of(exited(3)), "user worker: exit code");
  EXPECT_EQ(of(exited(1), kUncaught), "user worker: exception");
  EXPECT_EQ(of(exited(1), "Traceback (most recent call last):\n  f\nModuleNotFoundError: No\n"),
            "user input: exception");
  EXPECT_EQ(of(exited(2), "usage: train.py [-h]\ntrain.py: error: x"), "user input: exit code");
  EXPECT_EQ(of(killed(SIGSEGV)), "user worker: signal");
  EXPECT_EQ(of(killed(SIGTERM)), "platform: signal");
  EXPECT_EQ(of(killed(SIGKILL)), "platform: signal");
  EXPECT_EQ(of(killed(SIGKILL), "", {.oom_kills = 2, .oom_counter = "c", .gpu_fault = ""}),
            "platform: out of memory");
  EXPECT_EQ(of(killed(SIGABRT), "", {.oom_kills = {}, .oom_counter = "", .gpu_fault = "Xid 79"}),
            "platform: GPU fault");
  WorkerExit hung = killed(SIGKILL);
  hung.verdict = "hung: no rank made progress for 5 s";
  EXPECT_EQ(of(hung), "user worker: hang");
  hung.is_unreachable = true;
  EXPECT_EQ(of(hung), "infrastructure: unreachable");
  WorkerExit missing;
  missing.kind = ExitKind::kNotStarted;
  missing.error = ENOENT;
  EXPECT_EQ(of(missing), "user input: not started");
}

TEST(Diagnosis, ExplainsSigkillByTheKernelsCounter) {
  const auto hint = [](std::uint64_t kills) {
    return diagnose(killed(SIGKILL), "", "",
                    {.oom_kills = kills, .oom_counter = "memory.events", .gpu_fault = ""})
        .hint;
  };
  EXPECT_EQ(hint(0),
            "something other than the kernel's out-of-memory killer sent SIGKILL: "
            "memory.events counted no OOM kill");
  EXPECT_EQ(
      hint(1),
      "killed by the kernel for lack of memory: memory.events counted 1 OOM kill in this round");
  EXPECT_EQ(diagnose(killed(SIGKILL), "", "", {}).hint, "") << "no counter can be read";
}

TEST(Diagnosis, HasTheErrorOfNativeCode) {
  struct Case {
    WorkerExit exit;
    const char* output;
    const char* error;
  };
  const Case cases[] = {
      {killed(SIGABRT),
       "terminate called after throwing an instance of 'c10::DistBackendError'\n"
       "  what():  [PG ID 0 Rank 1] Process group watchdog thread terminated with exception: CUDA "
       "error: an illegal memory access was encountered\nCUDA kernel errors might be\n",
       "c10::DistBackendError: [PG ID 0 Rank 1] Process group watchdog thread terminated with "
       "exception: CUDA error: an illegal memory access was encountered"},
      {killed(SIGABRT), "terminate called without an active exception\n",
       "terminate called without an active exception"},
      {killed(SIGSEGV),
       "Fatal Python error: Segmentation fault\n\nCurrent thread 0x7f (most recent call first):\n"
       "  File \"t.py\", line 3 in f\n",
       "Fatal Python error: Segmentation fault"},
      {killed(SIGABRT),
       "[rank1]:[E1128 12:00:00.1 ProcessGroupNCCL.cpp:632] [Rank 1] Watchdog caught collective "
       "operation timeout: WorkNCCL(SeqNum=3)\n"
       "[rank1]:[E1128 12:00:00.2 ProcessGroupNCCL.cpp:700] [Rank 1] To avoid data inconsistency\n",
       "[Rank 1] Watchdog caught collective operation timeout: WorkNCCL(SeqNum=3)"},
      {killed(SIGABRT), "python: x.c:12: run: Assertion `n > 0' failed.\n",
       "python: x.c:12: run: Assertion `n > 0' failed."},
      {killed(SIGABRT), "free(): invalid pointer\n", "free(): invalid pointer"},
      {exited(139), "run.sh: line 3:  77 Segmentation fault      (core dumped) ./train\n",
       "run.sh: line 3:  77 Segmentation fault      (core dumped) ./train"},
      {exited(1), "CUDA error: out of memory\n", "CUDA error: out of memory"},
      // The exception came first, and the process crashed while it ended.
      {killed(SIGABRT),
       "Traceback (most recent call last):\n  File \"t.py\", line 1, in <module>\nValueError: bad\n"
       "terminate called without an active exception\n",
       "ValueError: bad"},
      // Something else ended it.
      {killed(SIGKILL), "CUDA error: retried\n", ""},
  };
  for (const Case& one : cases) {
    EXPECT_EQ(diagnose(one.exit, one.output, "", {}).error, one.error) << one.output;
  }
}

TEST(Diagnosis, NamesTheSignalInAnExitCode) {
  EXPECT_EQ(exited(139).describe(), "exited with code 139 (128 + SIGSEGV)");
  EXPECT_EQ(exited(128).describe(), "exited with code 128");
  EXPECT_EQ(exited(200).describe(), "exited with code 200");
}

TEST(Diagnosis, ExplainsWhatLackOfMemoryDidToAHelper) {
  KernelEvidence kernel;
  kernel.oom_kills = 1;
  kernel.oom_counter = "memory.events";
  const FailureEvidence found = diagnose(
      exited(1), "", "RuntimeError: DataLoader worker (pid(s) 7) exited unexpectedly", kernel);
  EXPECT_EQ(found.cause, FailureCause::kOutOfMemory);
  EXPECT_EQ(found.hint,
            "the kernel killed a process for lack of memory in this round, such as a worker of a "
            "DataLoader: memory.events counted 1 OOM kill");
  EXPECT_EQ(diagnose(exited(1), "", "KeyError: 1", kernel).cause, FailureCause::kException);
}

TEST(Diagnosis, ExplainsABusErrorByTheSizeOfSharedMemory) {
  constexpr std::uint64_t kMebibyte = 1024 * 1024;
  KernelEvidence kernel;
  kernel.shm_bytes = 64 * kMebibyte;
  kernel.shm_free_bytes = kMebibyte;
  EXPECT_EQ(diagnose(killed(SIGBUS), "", "", kernel).hint,
            "/dev/shm may be full: it has 64 MiB, of which 1 MiB are free now; give the container "
            "more (--shm-size, or an emptyDir of medium Memory), or remove what ended jobs left "
            "there");
  EXPECT_NE(diagnose(exited(1), "", "OSError: [Errno 28] No space left on device", kernel).hint,
            "");
  EXPECT_EQ(diagnose(killed(SIGSEGV), "", "", kernel).hint, "");
  kernel.shm_bytes = kernel.shm_free_bytes = 1024 * kMebibyte;
  EXPECT_EQ(diagnose(killed(SIGBUS), "", "", kernel).hint, "") << "there is room";
}

TEST(Fingerprint, IgnoresNumbers) {
  const auto of = [](int code, std::string_view output) {
    return fingerprint_of(exited(code), diagnose(exited(code), output, "", {}), output);
  };
  EXPECT_EQ(of(1, "loss 1.5 at step 100\n"), of(1, "loss 2.25 at step 7\n"));
  EXPECT_NE(of(1, "loss"), of(2, "loss"));
  EXPECT_NE(of(1, "out of memory"), of(1, "broken pipe"));
}

TEST(ReportTime, IsThatOfTheEarlierReportUnlessAnotherRankWasTheCause) {
  using std::chrono::seconds;
  const Instant ended(seconds(1000));
  const auto before = [&](int age) { return std::optional(ended - seconds(age)); };
  struct Case {
    const char* error;
    std::optional<Instant> traceback, file, expected;
  };
  for (const auto& [error, traceback, file, expected] : {
           Case{"KeyError: 'x'", std::nullopt, std::nullopt, std::nullopt},
           Case{"KeyError: 'x'", before(2), std::nullopt, before(2)},
           Case{"KeyError: 'x'", std::nullopt, before(3), before(3)},
           Case{"KeyError: 'x'", before(2), before(3), before(3)},
           Case{"KeyError: 'x'", before(60), std::nullopt, before(60)},
           Case{"KeyError: 'x'", before(61), std::nullopt, std::nullopt},
           Case{"KeyError: 'x'", before(61), before(1), before(1)},
           Case{"RuntimeError: [pair.cc:553] Connection closed by peer [10.0.0.1]:1", before(2),
                before(3), std::nullopt},
       }) {
    EXPECT_EQ(report_time({.error = error, .hint = {}}, traceback, file, ended), expected);
  }
}

TEST(HasFailed, IsAnOwnExitOrAReportBeforeTheStop) {
  const std::optional<Instant> early(std::chrono::seconds(1)), late(std::chrono::seconds(2));
  EXPECT_TRUE(has_failed(exited(1), std::nullopt, late));
  for (const WorkerExit& exit : {stopped(killed(SIGTERM)), WorkerExit{}}) {  // or it still runs
    EXPECT_FALSE(is_own_exit(exit));
    EXPECT_TRUE(has_failed(exit, early, late));
    EXPECT_FALSE(has_failed(exit, late, late));
    EXPECT_FALSE(has_failed(exit, std::nullopt, late));
    EXPECT_FALSE(has_failed(exit, early, std::nullopt)) << "the workers were not stopped";
  }
}

TEST(GpuFault, IsFoundInALineOfTheKernelLog) {
  EXPECT_EQ(gpu_fault_in("NVRM: Xid (PCI:0000:3b:00): 79, pid=17, GPU has fallen off the bus."),
            "Xid 79 (PCI:0000:3b:00)");
  EXPECT_EQ(gpu_fault_in("NVRM: loading module"), "");
  EXPECT_EQ(gpu_fault_in("NVRM: Xid (PCI"), "");
}

}  // namespace
}  // namespace elastic::core
