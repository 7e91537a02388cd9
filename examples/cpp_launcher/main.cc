// An elastic agent without Python: it can join the same jobs as elastic-launch.
//
//   cpp_launcher [--nnodes MIN[:MAX]] [--nproc N] [--endpoint HOST:PORT] [--id NAME]
//                [--max-restarts N] PROGRAM [ARGUMENT ...]
//
// Runs PROGRAM N times on this node. Nodes with the same endpoint and id form one job; without an
// endpoint the job has one node.

#include <elastic/agent.h>

#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <string>
#include <vector>

extern char** environ;

namespace {

using Kind = elastic::AgentEvent::Kind;

volatile std::sig_atomic_t last_signal = 0;

[[noreturn]] void usage_error(const std::string& why) {
  std::fprintf(stderr, "cpp_launcher: %s\n", why.c_str());
  std::exit(elastic::kExitUsage);
}

int number(const std::string& text, int least, int most) {
  char* end = nullptr;
  const long value = std::strtol(text.c_str(), &end, 10);
  if (text.empty() || *end != '\0' || value < least || value > most) {
    usage_error("'" + text + "' is not a number from " + std::to_string(least));
  }
  return static_cast<int>(value);
}

void set(elastic::AgentOptions* options, int* workers, const std::string& name,
         const std::string& value) {
  elastic::RendezvousOptions& rendezvous = options->rendezvous;
  const std::size_t colon = value.rfind(':');
  if (name == "--nnodes") {
    rendezvous.settings.min_nodes = number(value.substr(0, colon), 1, elastic::kNodesMax);
    rendezvous.settings.max_nodes = colon == std::string::npos
                                        ? rendezvous.settings.min_nodes
                                        : number(value.substr(colon + 1), 1, elastic::kNodesMax);
  } else if (name == "--nproc") {
    *workers = number(value, 1, elastic::kLocalWorldSizeMax);
  } else if (name == "--endpoint") {
    if (colon == std::string::npos) usage_error("--endpoint " + value + ": expected HOST:PORT");
    rendezvous.endpoint_host = value.substr(0, colon);
    rendezvous.endpoint_port =
        static_cast<std::uint16_t>(number(value.substr(colon + 1), 1, 65535));
  } else if (name == "--id") {
    options->run_id = value;
  } else if (name == "--max-restarts") {
    rendezvous.settings.max_restarts = number(value, 0, 1'000'000);
  } else {
    usage_error("unknown option " + name + " " + value);
  }
}

elastic::AgentOptions parse(const std::vector<std::string>& words) {
  elastic::AgentOptions options;
  int workers = 1;
  std::size_t at = 0;
  for (; at + 1 < words.size() && words[at].starts_with("--"); at += 2) {
    set(&options, &workers, words[at], words[at + 1]);
  }
  if (at == words.size()) usage_error("PROGRAM is missing");
  options.workers.resize(static_cast<std::size_t>(workers));
  for (auto& worker : options.workers) {
    worker.argv.assign(words.begin() + static_cast<std::ptrdiff_t>(at), words.end());
  }
  for (char** variable = environ; *variable != nullptr; ++variable) {
    options.env.emplace_back(*variable);
  }
  return options;
}

void handle_signals() {
  struct sigaction action {};
  action.sa_handler = [](int number) { last_signal = number; };
  for (const int number : {SIGTERM, SIGINT, SIGHUP}) sigaction(number, &action, nullptr);
}

void print_event(const elastic::AgentEvent& event) {
  if (event.kind == Kind::kWorkersRunning) {
    std::fprintf(stderr, "cpp_launcher: round %llu runs, node %d of %d, %s:%d\n",
                 static_cast<unsigned long long>(event.round->round), event.round->group_rank,
                 event.round->group_world_size, event.round->master_addr.c_str(),
                 event.round->master_port);
  } else if (event.kind == Kind::kProgress || event.kind == Kind::kRestarting) {
    std::fprintf(stderr, "cpp_launcher: %s\n", event.message.c_str());
  }
}

}  // namespace

int main(int argc, char** argv) {
  handle_signals();
  auto agent = elastic::Agent::start(parse({argv + 1, argv + argc}));
  if (!agent.ok()) usage_error(std::string(agent.status().message()));
  for (bool finished = false; !finished;) {
    // The wait ends without an event when a signal arrives.
    const auto event = (*agent)->next_event(elastic::Instant::max(), [] { return last_signal; });
    if (const int signal = last_signal; signal != 0) {
      last_signal = 0;
      (*agent)->request_stop(signal);
    }
    if (!event) continue;
    print_event(*event);
    finished = event->kind == Kind::kFinished;
  }
  const elastic::AgentResult& result = (*agent)->result();
  const std::string report = result.report();
  if (!report.empty()) std::fprintf(stderr, "cpp_launcher: %s\n", report.c_str());
  return result.exit_code;
}
