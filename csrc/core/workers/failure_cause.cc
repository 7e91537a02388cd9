#include "core/workers/failure_cause.h"

#include <algorithm>
#include <array>
#include <cctype>
#include <cerrno>
#include <charconv>
#include <csignal>
#include <cstdint>
#include <optional>
#include <utility>

#include "core/base/text.h"

namespace elastic {
const char* to_string(FailureClass failure_class) {
  switch (failure_class) {
    case FailureClass::kUserWorker: break;
    case FailureClass::kUserInput: return "user input";
    case FailureClass::kPlatform: return "platform";
    case FailureClass::kInfrastructure: return "infrastructure";
  }
  return "user worker";
}

const char* to_string(FailureCause cause) {
  switch (cause) {
    case FailureCause::kUnknown: break;
    case FailureCause::kExitCode: return "exit code";
    case FailureCause::kException: return "exception";
    case FailureCause::kSignal: return "signal";
    case FailureCause::kOutOfMemory: return "out of memory";
    case FailureCause::kGpu: return "GPU fault";
    case FailureCause::kNotStarted: return "not started";
    case FailureCause::kNodeLost: return "node lost";
    case FailureCause::kUnreachable: return "unreachable";
    case FailureCause::kHang: return "hang";
  }
  return "unknown";
}

namespace core {
namespace {

constexpr std::size_t kErrorBytesMax = 512;
// A traceback that is older than this when its worker ends did not end it.
constexpr Duration kReportAgeMax = std::chrono::seconds(60);
constexpr std::string_view kOriginal = "Original ";  // DataLoader: "Original Traceback (most …"
constexpr int kShellSignalBase = 128;  // a shell ends with 128 + N when signal N killed its command
constexpr int kUsageExit = 2;  // of argparse, and of Python for a script that does not exist

// Takes the first line off the text.
std::string_view next_line(std::string_view* text) {
  const std::size_t end = text->find('\n');
  const std::string_view line = text->substr(0, end);
  text->remove_prefix(end == std::string_view::npos ? text->size() : end + 1);
  return line;
}

// A line such as "KeyError: 'x'", "torch.OutOfMemoryError: …" or "KeyboardInterrupt".
bool is_exception_line(std::string_view line) {
  std::size_t end = 0;
  while (end < line.size() && (std::isalnum(static_cast<unsigned char>(line[end])) != 0 ||
                               line[end] == '.' || line[end] == '_')) {
    ++end;
  }
  const bool is_name = end > 0 && std::isdigit(static_cast<unsigned char>(line[0])) == 0;
  return is_name &&
         (end == line.size() || line.substr(end).starts_with(": ") || line.substr(end) == ":");
}

bool is_wrong_input(std::string_view error) {
  constexpr std::array<std::string_view, 5> kTypes = {"SyntaxError", "IndentationError", "TabError",
                                                      "ModuleNotFoundError", "ImportError"};
  if (error.starts_with("No module named ")) return true;  // python -m
  const std::string_view type = error.substr(0, error.find(':'));
  return std::find(kTypes.begin(), kTypes.end(), type) != kTypes.end();
}

FailureEvidence diagnose_signal(const WorkerExit& exit, const KernelEvidence& kernel) {
  FailureEvidence found;
  found.cause = FailureCause::kSignal;
  if (exit.is_unreachable) {
    found.failure_class = FailureClass::kInfrastructure;
    found.cause = FailureCause::kUnreachable;
    found.hint =
        "check the routes and firewalls between the two hosts; --iface or --subnet selects the "
        "network in which nodes publish their addresses";
  }
  if (!exit.verdict.empty()) {  // the agent itself sent it
    if (!exit.is_unreachable) found.cause = FailureCause::kHang;
    return found;
  }
  const bool is_from_outside = exit.signal == SIGKILL || exit.signal == SIGTERM ||
                               exit.signal == SIGINT || exit.signal == SIGHUP;
  if (!is_from_outside) return found;
  found.failure_class = FailureClass::kPlatform;
  if (exit.signal != SIGKILL || !kernel.oom_kills) return found;
  if (*kernel.oom_kills == 0) {
    found.hint = "something other than the kernel's out-of-memory killer sent SIGKILL: " +
                 kernel.oom_counter + " counted no OOM kill";
    return found;
  }
  found.cause = FailureCause::kOutOfMemory;
  found.hint = "killed by the kernel for lack of memory: " + kernel.oom_counter + " counted " +
               std::to_string(*kernel.oom_kills) +
               (*kernel.oom_kills == 1 ? " OOM kill" : " OOM kills") + " in this round";
  return found;
}

FailureEvidence diagnose_start(const WorkerExit& exit) {
  FailureEvidence found;
  found.cause = FailureCause::kNotStarted;
  const bool is_wrong = exit.error == ENOENT || exit.error == EACCES || exit.error == ENOEXEC;
  found.failure_class = is_wrong ? FailureClass::kUserInput : FailureClass::kPlatform;
  return found;
}

struct Uncaught {
  std::string error;
  bool is_of_main_module = false;  // else of a thread, of atexit, or logged by the program
};

std::string shortened(std::string_view line) { return std::string(line.substr(0, kErrorBytesMax)); }

// The traceback whose header is at `begin`.
Uncaught read_traceback(std::string_view output, std::size_t begin) {
  constexpr std::string_view kGroup = "+ Exception Group ";
  Uncaught found;
  // torch's excepthook begins each line with "[rank0]: ".
  const std::size_t line_begin = output.substr(0, begin).rfind('\n') + 1;  // npos + 1 is 0
  std::string prefix(output.substr(line_begin, begin - line_begin));
  if (prefix.ends_with(kGroup)) {
    prefix.resize(prefix.size() - kGroup.size());
    prefix += "| ";
  } else if (prefix.ends_with(kOriginal)) {
    prefix.resize(prefix.size() - kOriginal.size());
  }
  std::string_view rest = output.substr(begin);
  next_line(&rest);
  for (bool is_first = true; !rest.empty(); is_first = false) {
    std::string_view line = next_line(&rest);
    if (line.starts_with(prefix)) line.remove_prefix(prefix.size());
    if (is_first) {
      found.is_of_main_module =
          line.ends_with(", in <module>") || line.find("in _run_module_as_main") != line.npos;
    }
    // The frames are indented; the first line that is not names the exception.
    if (line.empty() || line.front() == ' ' || line.front() == '\t') continue;
    if (is_exception_line(line)) found.error = shortened(line);
    break;
  }
  return found;
}

// The box that rich draws around the frames; the exception follows it.
Uncaught read_box(std::string_view output) {
  constexpr std::string_view kHeader = "Traceback (most recent call last) ";
  const std::size_t begin = output.rfind(kHeader);
  if (begin == std::string_view::npos) return {};
  std::string_view rest = output.substr(begin);
  Uncaught found;
  found.is_of_main_module = rest.find(" in <module>") != rest.npos;
  while (!rest.empty()) {
    if (!next_line(&rest).starts_with("\xE2\x95\xB0")) continue;  // the lower left corner
    const std::string_view line = next_line(&rest);
    if (is_exception_line(line)) found.error = shortened(line);
  }
  return found;
}

// What the interpreter prints about a program that it cannot begin: it has no frames.
Uncaught read_refusal(std::string_view output) {
  constexpr std::string_view kMissing = ": No module named ";
  Uncaught found;
  found.is_of_main_module = true;
  bool is_below_file = false;
  while (!output.empty()) {
    std::string_view line = next_line(&output);
    const std::size_t missing = line.find(kMissing);
    if (line.starts_with("  File \"")) {
      is_below_file = true;
    } else if (missing != line.npos && line.substr(0, missing).find("python") != line.npos) {
      if (line.ends_with(')')) line.remove_suffix(1);  // "… (ModuleNotFoundError: No module …)"
      found.error = shortened(line.substr(missing + 2));
    } else if (is_below_file && is_exception_line(line) && is_wrong_input(line)) {
      found.error = shortened(line);
    }
  }
  return found;
}

// That of the main module if there is one: threads and atexit print theirs later.
Uncaught find_uncaught(std::string_view output) {
  Uncaught last;
  Uncaught of_main;
  bool is_any = false;
  for (std::size_t at = output.find(kTracebackHeader); at != output.npos;
       at = output.find(kTracebackHeader, at + 1)) {
    Uncaught found = read_traceback(output, at);
    is_any = true;
    if (output.substr(0, at).ends_with(kOriginal)) {
      // The message of the exception before it, raised in a worker of a DataLoader.
      if (found.error.empty()) continue;
      if (last.is_of_main_module) of_main.error = found.error;
      last.error = std::move(found.error);
      continue;
    }
    last = std::move(found);
    if (last.is_of_main_module && !last.error.empty()) of_main = last;
  }
  if (!of_main.error.empty()) return of_main;
  if (is_any) return last;
  Uncaught other = read_box(output);
  if (other.error.empty()) other = read_refusal(output);
  return other;
}

// The error that native code printed before it ended the process: the last one of the most telling
// kind. "" if there is none.
std::string find_native_error(std::string_view output) {
  constexpr std::string_view kTerminate = "terminate called ";
  constexpr std::string_view kThrowing = "terminate called after throwing an instance of '";
  constexpr std::string_view kWhat = "  what():  ";
  constexpr std::string_view kFatal = "Fatal Python error: ";
  constexpr std::string_view kNccl = "ProcessGroupNCCL.cpp:";
  constexpr std::array<std::string_view, 2> kOfWatchdog = {"Watchdog caught", "error: "};
  // What glibc, the C++ library, CUDA and a shell print.
  constexpr std::array<std::string_view, 12> kOthers = {"CUDA error: ",
                                                        "HIP error: ",
                                                        "*** stack smashing detected",
                                                        "*** buffer overflow detected",
                                                        "double free or corruption",
                                                        "free(): invalid",
                                                        "malloc(): ",
                                                        "corrupted size vs. prev_size",
                                                        "munmap_chunk(): invalid",
                                                        "Unexpected bus error",
                                                        "Bus error",
                                                        "Segmentation fault"};
  const auto has_one_of = [](std::string_view line, const auto& signs) {
    return std::any_of(signs.begin(), signs.end(),
                       [line](std::string_view sign) { return line.find(sign) != line.npos; });
  };
  std::string thrown;
  std::string fatal;
  std::string of_nccl;
  std::string other;
  while (!output.empty()) {
    const std::string_view line = next_line(&output);
    if (const std::size_t at = line.find(kThrowing); at != line.npos) {
      std::string_view type = line.substr(at + kThrowing.size());
      type = type.substr(0, type.rfind('\''));
      std::string_view rest = output;
      std::string_view what = next_line(&rest);
      const std::size_t begin = what.find(kWhat);
      what = begin == what.npos ? "" : what.substr(begin + kWhat.size());
      thrown = shortened(std::string(type) + (what.empty() ? "" : ": ") + std::string(what));
    } else if (const std::size_t at_end = line.find(kTerminate); at_end != line.npos) {
      thrown = shortened(line.substr(at_end));
    } else if (const std::size_t at_fatal = line.find(kFatal); at_fatal != line.npos) {
      fatal = shortened(line.substr(at_fatal));
    } else if (const std::size_t at_nccl = line.find(kNccl); at_nccl != line.npos) {
      const std::string_view text = line.substr(std::min(line.find("] ", at_nccl), line.size()));
      if (text.size() > 2 && has_one_of(text, kOfWatchdog)) of_nccl = shortened(text.substr(2));
    } else if (has_one_of(line, kOthers) ||
               (line.find("Assertion ") != line.npos && line.find(" failed") != line.npos)) {
      other = shortened(line);
    }
  }
  for (const std::string* found : {&thrown, &fatal, &of_nccl}) {
    if (!found->empty()) return *found;
  }
  return other;
}

// The process was ended by itself or by what it did, as it or the shell that waited for it reports.
bool is_native_death(const WorkerExit& exit) {
  const int signal = exit.kind == ExitKind::kSignaled ? exit.signal : exit.code - kShellSignalBase;
  constexpr std::array<int, 7> kOfFaults = {SIGABRT, SIGSEGV, SIGBUS, SIGFPE,
                                            SIGILL,  SIGTRAP, SIGSYS};
  return std::find(kOfFaults.begin(), kOfFaults.end(), signal) != kOfFaults.end();
}

// The four digits of a \uXXXX at the beginning of the text; nullopt: there is none.
std::optional<std::uint32_t> code_unit(std::string_view text) {
  constexpr std::size_t kDigits = 4;
  if (!text.starts_with("\\u") || text.size() < 2 + kDigits) return std::nullopt;
  std::uint32_t unit = 0;
  const char* end = text.data() + 2 + kDigits;
  const auto [stop, error] = std::from_chars(text.data() + 2, end, unit, 16);
  if (error != std::errc() || stop != end) return std::nullopt;
  return unit;
}

std::string to_utf8(std::uint32_t code) {
  const auto tail = [&](int shift) { return static_cast<char>(0x80U | ((code >> shift) & 0x3FU)); };
  if (code < 0x80) return {static_cast<char>(code)};
  if (code < 0x800) return {static_cast<char>(0xC0U | (code >> 6U)), tail(0)};
  if (code < 0x10000) return {static_cast<char>(0xE0U | (code >> 12U)), tail(6), tail(0)};
  return {static_cast<char>(0xF0U | (code >> 18U)), tail(12), tail(6), tail(0)};
}

// Takes the character of a \uXXXX escape off the text, or of the two escapes with which JSON writes
// a character beyond U+FFFF.
std::string take_escaped_character(std::string_view* text, std::uint32_t unit) {
  constexpr std::size_t kBytes = 6;
  constexpr std::uint32_t kReplacement = 0xFFFD;
  const auto is_surrogate = [](std::uint32_t code, std::uint32_t first) {
    return code >= first && code < first + 0x400;
  };
  text->remove_prefix(kBytes);
  if (!is_surrogate(unit, 0xD800) && !is_surrogate(unit, 0xDC00)) return to_utf8(unit);
  const std::optional<std::uint32_t> second = code_unit(*text);
  if (!is_surrogate(unit, 0xD800) || !second || !is_surrogate(*second, 0xDC00)) {
    return to_utf8(kReplacement);
  }
  text->remove_prefix(kBytes);
  return to_utf8(0x10000 + ((unit - 0xD800) << 10U) + (*second - 0xDC00));
}

// Takes a character, or a byte, off the text of a JSON string.
std::string take_json_character(std::string_view* text) {
  if (const auto unit = code_unit(*text)) return take_escaped_character(text, *unit);
  char found = text->front();
  text->remove_prefix(1);
  if (found != '\\' || text->empty()) return {found};
  found = text->front();
  text->remove_prefix(1);
  constexpr std::string_view kNames = "bfnrt";
  constexpr std::string_view kMeanings = "\b\f\n\r\t";
  const std::size_t at = kNames.find(found);
  return {at == std::string_view::npos ? found : kMeanings[at]};
}

std::string mebibytes(std::uint64_t bytes) {
  constexpr std::uint64_t kMebibyte = 1024 * 1024;
  return std::to_string((bytes + kMebibyte / 2) / kMebibyte) + " MiB";
}

// What the kernel counted if it did not kill the worker itself.
void add_memory_hint(const WorkerExit& exit, const KernelEvidence& kernel, FailureEvidence* found) {
  if (!found->hint.empty() || !exit.verdict.empty()) return;
  constexpr std::uint64_t kDefaultOfContainers = std::uint64_t{64} * 1024 * 1024;
  const auto has = [&](std::string_view sign) {
    return found->error.find(sign) != std::string::npos;
  };
  const bool is_bus_error = (is_native_death(exit) &&
                             (exit.signal == SIGBUS || exit.code == kShellSignalBase + SIGBUS)) ||
                            has("bus error") || has("Bus error") || has("No space left on device");
  const std::uint64_t size = kernel.shm_bytes;
  if (is_bus_error && size > 0 &&
      (kernel.shm_free_bytes <= size / 20 || size <= kDefaultOfContainers)) {
    found->hint = "/dev/shm may be full: it has " + mebibytes(size) + ", of which " +
                  mebibytes(kernel.shm_free_bytes) +
                  " are free now; give the container more (--shm-size, or an emptyDir of medium "
                  "Memory), or remove what ended jobs left there";
    return;
  }
  if (!kernel.oom_kills || *kernel.oom_kills == 0) return;
  found->hint =
      "the kernel killed a process for lack of memory in this round, such as a worker of "
      "a DataLoader: " +
      kernel.oom_counter + " counted " + std::to_string(*kernel.oom_kills) +
      (*kernel.oom_kills == 1 ? " OOM kill" : " OOM kills");
  const bool is_of_helper = has("exited unexpectedly") || has("is killed by signal: Killed") ||
                            has("terminated abruptly");
  if (!is_of_helper) return;
  found->failure_class = FailureClass::kPlatform;
  found->cause = FailureCause::kOutOfMemory;
}

// The first line of an exception's message, or the exception that it quotes.
std::string message_line(std::string_view message) {
  std::string line(message.substr(0, message.find('\n')));
  if (message.find(std::string(kOriginal) + std::string(kTracebackHeader)) != message.npos) {
    if (std::string quoted = find_uncaught(message).error; !quoted.empty()) return quoted;
  }
  // No part of a character.
  std::size_t size = std::min(line.size(), kErrorBytesMax);
  while (size < line.size() && (static_cast<unsigned char>(line[size]) & 0xC0U) == 0x80) --size;
  line.resize(size);
  return line;
}

}  // namespace

std::string last_exception(std::string_view output) { return find_uncaught(output).error; }

bool is_uncaught_exception(std::string_view output) {
  const Uncaught found = find_uncaught(output);
  return found.is_of_main_module && !found.error.empty();
}

std::string error_file_message(std::string_view json) {
  constexpr std::string_view kKey = "\"message\"";
  for (std::size_t at = json.find(kKey); at != std::string_view::npos; at = json.find(kKey, at)) {
    at += kKey.size();
    std::string_view rest = json.substr(at);
    rest.remove_prefix(std::min(rest.find_first_not_of(" \t\n:"), rest.size()));
    if (!rest.starts_with('"')) continue;  // the outer "message" is an object
    rest.remove_prefix(1);
    std::string text;
    while (!rest.empty() && rest.front() != '"') text += take_json_character(&rest);
    return message_line(text);
  }
  return "";
}

FailureEvidence diagnose(const WorkerExit& exit, std::string_view output,
                         std::string_view error_message, const KernelEvidence& kernel) {
  FailureEvidence found;
  if (exit.kind == ExitKind::kNotStarted) return diagnose_start(exit);
  std::string error(error_message);
  bool is_final = !error.empty();
  if (!is_final) {
    Uncaught uncaught = find_uncaught(output);
    error = std::move(uncaught.error);
    is_final = uncaught.is_of_main_module && !error.empty();
  }
  // A process that ends with an exception may crash while it ends.
  const bool may_be_native =
      !is_final && (is_native_death(exit) || (error.empty() && exit.kind == ExitKind::kExited));
  const std::string native = may_be_native ? find_native_error(output) : "";
  if (exit.kind == ExitKind::kSignaled && !exit.stopped_by_us) {
    found = diagnose_signal(exit, kernel);
  } else if (!error.empty()) {
    found.cause = FailureCause::kException;
    if (is_wrong_input(error)) found.failure_class = FailureClass::kUserInput;
  } else if (exit.kind == ExitKind::kExited) {
    found.cause = FailureCause::kExitCode;
    const bool is_usage = output.find("usage: ") != std::string_view::npos ||
                          output.find("can't open file") != std::string_view::npos;
    if (exit.code == kUsageExit && is_usage) found.failure_class = FailureClass::kUserInput;
  }
  found.error = native.empty() ? std::move(error) : native;
  add_memory_hint(exit, kernel, &found);
  if (!kernel.gpu_fault.empty()) {
    found.failure_class = FailureClass::kPlatform;
    found.cause = FailureCause::kGpu;
    found.hint = "the kernel log reports a GPU fault: " + kernel.gpu_fault;
  }
  return found;
}

std::string fingerprint_of(const WorkerExit& exit, const FailureEvidence& evidence,
                           std::string_view output) {
  const std::string_view what =
      evidence.error.empty() ? last_line(output) : std::string_view(evidence.error);
  return exit.describe() + "|" + without_numbers(what);
}

std::optional<Instant> report_time(const FailureEvidence& evidence,
                                   std::optional<Instant> traceback, std::optional<Instant> file,
                                   Instant ended_at) {
  // The sockets of a process are closed before its exit is known: what others raise then is
  // earlier.
  if (is_lost_peer(evidence.error)) return std::nullopt;
  if (traceback && ended_at - *traceback > kReportAgeMax) traceback.reset();
  if (!traceback || !file) return traceback ? traceback : file;
  // The file precedes the traceback by the milliseconds that it takes to write it.
  return std::min(*traceback, *file);
}

bool is_own_exit(const WorkerExit& exit) {
  return exit.kind != ExitKind::kUnknown && !exit.stopped_by_us;
}

bool has_failed(const WorkerExit& exit, std::optional<Instant> reported_at,
                std::optional<Instant> stopped_at) {
  return is_own_exit(exit) || (reported_at && stopped_at && *reported_at < *stopped_at);
}

std::string gpu_fault_in(std::string_view line) {
  // "NVRM: Xid (PCI:0000:3b:00): 79, pid=…, GPU has fallen off the bus."
  constexpr std::string_view kMark = "NVRM: Xid (";
  const std::size_t at = line.find(kMark);
  if (at == std::string_view::npos) return "";
  line.remove_prefix(at + kMark.size());
  const std::size_t close = line.find("): ");
  if (close == std::string_view::npos) return "";
  const std::string_view device = line.substr(0, close);
  line.remove_prefix(close + 3);
  const std::string_view number = line.substr(0, line.find_first_not_of("0123456789"));
  if (number.empty()) return "";
  return "Xid " + std::string(number) + " (" + std::string(device) + ")";
}

}  // namespace core
}  // namespace elastic
