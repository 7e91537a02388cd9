// Uses every public header of an installed elastic: a store, a client, workers, an agent.

#include <elastic/agent.h>
#include <elastic/store_client.h>
#include <elastic/store_server.h>
#include <elastic/version.h>
#include <elastic/worker_group.h>

#include <cstdio>
#include <cstdlib>

namespace {

void require(const elastic::Status& status, const char* what) {
  if (status.ok()) return;
  std::fprintf(stderr, "%s: %.*s\n", what, static_cast<int>(status.message().size()),
               status.message().data());
  std::exit(1);
}

void use_the_store() {
  auto server = elastic::StoreServer::start({});
  require(server.status(), "store server");
  elastic::StoreClientOptions options;
  options.port = (*server)->port();
  auto client = elastic::StoreClient::connect(options);
  require(client.status(), "store client");
  require((*client)->set("key", "value"), "set");
  auto value = (*client)->get("key");
  require(value.status(), "get");
  if (*value != "value") std::exit(1);
}

void run_two_workers() {
  auto group = elastic::WorkerGroup::create({});
  require(group.status(), "worker group");
  require((*group)->start({{.argv = {"true"}}, {.argv = {"true"}}}), "start");
  int succeeded = 0;
  while (auto event = (*group)->next_event(elastic::Instant::max())) {
    if (event->kind == elastic::WorkerEvent::Kind::kExited) succeeded += event->exit.succeeded();
    if (event->kind == elastic::WorkerEvent::Kind::kGroupEnded) break;
  }
  if (succeeded != 2) std::exit(1);
}

int run_an_agent() {
  elastic::AgentOptions options;
  options.rendezvous.settings.max_restarts = 1;
  options.workers.resize(2);
  for (auto& worker : options.workers) {
    // Fails in the first round and succeeds in the second.
    worker.argv = {"sh", "-c", "test $TORCHELASTIC_RESTART_COUNT = 1"};
  }
  auto agent = elastic::Agent::start(options);
  require(agent.status(), "agent");
  while (auto event = (*agent)->next_event(elastic::Instant::max())) {
    if (event->kind == elastic::AgentEvent::Kind::kFinished) break;
  }
  return (*agent)->result().exit_code;
}

}  // namespace

int main() {
  use_the_store();
  run_two_workers();
  const int code = run_an_agent();
  std::printf("elastic %s: %s\n", ELASTIC_VERSION, code == 0 ? "works" : "fails");
  return code;
}
