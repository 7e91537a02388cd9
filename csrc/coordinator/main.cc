// elastic-coordinator: a coordinator in a separate process, without an agent.
//
//   elastic-coordinator --bind HOST[:PORT] [--state-file FILE] [--voters N] [--token-file FILE]
//   elastic-coordinator --witness --bind HOST[:PORT] [--token-file FILE]
//
// SIGTERM and SIGINT end it.

#include <signal.h>
#include <sys/resource.h>
#include <unistd.h>

#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <optional>
#include <string>
#include <string_view>

#include "coordinator/line_writer.h"
#include "elastic/coordinator.h"
#include "elastic/version.h"
#include "elastic/witness.h"

namespace elastic::coordinator {
namespace {

constexpr int kExitUsage = 2;
constexpr int kExitCannotServe = 73;
constexpr int kExitCannotKeepState = 74;
constexpr std::uint16_t kDefaultPort = 29400;
// The time in which agents of ended jobs can still receive the result.
constexpr Duration kDrain = std::chrono::seconds(5);

constexpr const char* kHelp =
    R"(usage: elastic-coordinator --bind HOST[:PORT] [--state-file FILE] [--voters N]
                           [--token-file FILE] [--on-exclude COMMAND]
       elastic-coordinator --witness --bind HOST[:PORT] [--token-file FILE]
       elastic-coordinator --print-observer-token --token-file FILE [--job ID]

Runs the rendezvous of elastic jobs. Give its address to the agents as --rdzv-endpoint. One
coordinator serves any number of jobs, which are distinguished by their ids (--rdzv-id).

  --bind HOST[:PORT]   the address to listen on; an empty HOST is every interface, an IPv6 address
                       is written in brackets. The default port is 29400; 0 chooses a free one
  --state-file FILE    keep the jobs' state in FILE and restore it after a restart. Without it, a
                       restarted coordinator rebuilds the state from the agents. With --voters
                       FILE has only the jobs that have one voter
  --voters N           let N nodes of each job (3 or 5, or auto: by the number of its hosts) keep
                       the job's record, so that one of them becomes the coordinator when this one
                       is lost. The agents need the same number in --rdzv-conf. Default: 1, none
  --token-file FILE    accept only agents that know one of the tokens in FILE: one on each line, or
                       a run id, a space and the token of that job. The file must not be accessible
                       by other users, and is read again when it has changed. Default: the variable
                       ELASTIC_TOKEN_FILE, else the tokens in ELASTIC_TOKEN
  --on-exclude COMMAND run COMMAND with sh -c for each host that a job excludes, with the variables
                       that elastic-launch help policy names
  --witness            vote in the elections of jobs, and coordinate none: for jobs of two nodes,
                       whose agents name it by --rdzv-conf=witness=HOST:PORT. Run it on a further
                       machine
  --print-observer-token
                       print the token with which the state of jobs can be read, and exit. --job
                       selects the line of the token file
  --version, --help    print the version or this help, and exit

SIGTERM and SIGINT end it. Exit codes: 0 ended by one of them, 2 usage, 73 cannot listen, 74 the
state file cannot be used.
)";

struct Arguments {
  std::string host;
  std::uint16_t port = kDefaultPort;
  std::string state_file;
  std::string on_exclude;
  int voters = 1;
  TokenOptions token;
  std::string job;
  bool prints_observer_token = false;
  bool is_witness = false;
};

int usage_error(const std::string& message) {
  std::fprintf(stderr, "elastic-coordinator: %s (see --help)\n", message.c_str());
  return kExitUsage;
}

// Returns false for an invalid address.
bool parse_bind(std::string_view text, Arguments* arguments) {
  std::size_t colon = text.rfind(':');
  const bool is_bracketed = text.starts_with('[');
  if (is_bracketed) {
    const std::size_t end = text.find(']');
    if (end == std::string_view::npos) return false;
    colon = end + 1 < text.size() ? end + 1 : std::string_view::npos;
    if (colon != std::string_view::npos && text[colon] != ':') return false;
  }
  arguments->host = text.substr(0, colon);
  if (!is_bracketed && arguments->host.find(':') != std::string::npos) return false;
  if (colon == std::string_view::npos) return !text.empty();
  const std::string_view port = text.substr(colon + 1);
  const auto parsed = std::from_chars(port.data(), port.data() + port.size(), arguments->port);
  return parsed.ec == std::errc() && parsed.ptr == port.data() + port.size();
}

// The token of the environment, if it has one.
Status find_token(TokenOptions* token) {
  const char* const file = std::getenv("ELASTIC_TOKEN_FILE");
  const char* const text = std::getenv("ELASTIC_TOKEN");
  token->file = file == nullptr ? "" : file;
  token->text = text == nullptr ? "" : text;
  if (token->file.empty() || token->text.empty()) return {};
  return {StatusCode::kInvalidArgument,
          "ELASTIC_TOKEN_FILE and ELASTIC_TOKEN are both set: use one of them"};
}

// Returns the exit code, or nullopt to continue.
std::optional<int> parse(int argc, char** argv, Arguments* arguments) {
  bool has_bind = false;
  for (int i = 1; i < argc; ++i) {
    const std::string_view argument = argv[i];
    if (argument == "--help" || argument == "-h") {
      std::fputs(kHelp, stdout);
      return 0;
    }
    if (argument == "--version") {
      std::puts("elastic-coordinator " ELASTIC_VERSION);
      return 0;
    }
    if (argument == "--print-observer-token") {
      arguments->prints_observer_token = true;
      continue;
    }
    if (argument == "--witness") {
      arguments->is_witness = true;
      continue;
    }
    const std::size_t equals = argument.find('=');
    const std::string name(argument.substr(0, equals));
    if (name != "--bind" && name != "--state-file" && name != "--voters" &&
        name != "--token-file" && name != "--job" && name != "--on-exclude") {
      return usage_error("unknown argument " + name);
    }
    if (equals == std::string_view::npos && ++i == argc) {
      return usage_error(name + " needs a value");
    }
    const std::string value(equals == std::string_view::npos ? argv[i]
                                                             : argument.substr(equals + 1));
    if (name == "--state-file") {
      arguments->state_file = value;
    } else if (name == "--on-exclude") {
      arguments->on_exclude = value;
    } else if (name == "--voters") {
      if (value != "1" && value != "3" && value != "5" && value != "auto") {
        return usage_error("--voters " + value + ": expected 1, 3, 5 or auto");
      }
      arguments->voters = value == "auto" ? 0 : value.front() - '0';
    } else if (name == "--token-file") {
      arguments->token.file = value;
    } else if (name == "--job") {
      arguments->job = value;
    } else if (!parse_bind(value, arguments)) {
      return usage_error("--bind " + value + ": not HOST:PORT");
    } else {
      has_bind = true;
    }
  }
  if (!arguments->token.is_set()) {
    if (Status fault = find_token(&arguments->token); !fault.ok()) {
      return usage_error(std::string(fault.message()));
    }
  }
  if (arguments->token.is_set()) {
    if (Status fault = check_token(arguments->token, arguments->job); !fault.ok()) {
      return usage_error(std::string(fault.message()));
    }
  }
  if (!has_bind && !arguments->prints_observer_token) return usage_error("--bind is missing");
  if (arguments->is_witness && (!arguments->state_file.empty() || arguments->voters != 1 ||
                                !arguments->on_exclude.empty())) {
    return usage_error(
        "--witness coordinates no job: --state-file, --voters and --on-exclude have no use");
  }
  return std::nullopt;
}

int print_observer_token(const Arguments& arguments) {
  if (!arguments.token.is_set()) return usage_error("--print-observer-token needs --token-file");
  const auto token = observer_token(arguments.token, arguments.job);
  if (!token.ok()) return usage_error(std::string(token.status().message()));
  std::puts(token->c_str());
  return 0;
}

// Each session uses a descriptor.
void raise_descriptor_limit() {
  rlimit limit{};
  if (::getrlimit(RLIMIT_NOFILE, &limit) != 0) return;
  limit.rlim_cur = limit.rlim_max;
  ::setrlimit(RLIMIT_NOFILE, &limit);
}

std::string address_text(const std::string& host, std::uint16_t port) {
  return (host.find(':') == std::string::npos ? host : "[" + host + "]") + ":" +
         std::to_string(port);
}

void await_signal(const sigset_t& signals, LineWriter* lines) {
  int number = 0;
  ::sigwait(&signals, &number);
  lines->write(std::string("received ") + (number == SIGTERM ? "SIGTERM" : "SIGINT"));
}

int run_witness(const Arguments& arguments, const sigset_t& signals, LineWriter* lines) {
  WitnessOptions options;
  options.host = arguments.host;
  options.port = arguments.port;
  options.token = arguments.token;
  options.log = [lines](std::string_view line) { lines->write(line); };
  auto witness = Witness::start(options);
  if (!witness.ok()) {
    lines->write("elastic-coordinator: " + std::string(witness.status().message()));
    return kExitCannotServe;
  }
  lines->write("witness listening on " + address_text((*witness)->host(), (*witness)->port()));
  await_signal(signals, lines);
  return 0;
}

int run(int argc, char** argv) {
  Arguments arguments;
  if (const auto code = parse(argc, argv, &arguments)) return *code;
  if (arguments.prints_observer_token) return print_observer_token(arguments);
  raise_descriptor_limit();
  ::signal(SIGPIPE, SIG_IGN);
  // Blocked before any thread starts, so that only sigwait below receives these signals.
  sigset_t signals;
  ::sigemptyset(&signals);
  ::sigaddset(&signals, SIGTERM);
  ::sigaddset(&signals, SIGINT);
  ::sigprocmask(SIG_BLOCK, &signals, nullptr);

  const auto started = LineWriter::start(STDERR_FILENO);
  if (!started.ok()) {
    const std::string message(started.status().message());
    std::fprintf(stderr, "elastic-coordinator: %s\n", message.c_str());
    return kExitCannotServe;
  }
  LineWriter& lines = **started;
  if (arguments.is_witness) return run_witness(arguments, signals, &lines);
  CoordinatorOptions options;
  options.host = arguments.host;
  options.port = arguments.port;
  options.state_file = arguments.state_file;
  options.voters = arguments.voters;
  options.on_exclude = arguments.on_exclude;
  options.token = arguments.token;
  options.log = [&lines](std::string_view line) { lines.write(line); };
  auto coordinator = Coordinator::start(options);
  if (!coordinator.ok()) {
    const Status error = coordinator.status();
    lines.write("elastic-coordinator: " + std::string(error.message()));
    const bool is_state = error.code() == StatusCode::kFailedPrecondition;
    return is_state ? kExitCannotKeepState : kExitCannotServe;
  }
  const std::string& host = (*coordinator)->host();
  lines.write("listening on " + address_text(host, (*coordinator)->port()));
  const bool is_reachable = !host.starts_with("127.") && host != "::1";
  if (is_reachable && !options.token.is_set()) {
    lines.write(
        "warning: every process that reaches this port can join or close its jobs: set a token "
        "(--token-file)");
  }
  await_signal(signals, &lines);
  (*coordinator)->close(kDrain);
  return 0;
}

}  // namespace
}  // namespace elastic::coordinator

int main(int argc, char** argv) { return elastic::coordinator::run(argc, argv); }
