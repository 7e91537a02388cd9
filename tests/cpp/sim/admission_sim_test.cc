// Which job a node enters, seed by seed: jobs begin at an endpoint, end, are lost and move to
// elected coordinators, and others of the same id follow. Every process answers with its own
// Admission. A failure prints the line that replays it.
//
//   separate  the endpoint is a process of its own
//   guest     it is in an agent of one of the two jobs, and the other one is its guest
//   standby   as separate, and an agent at a second endpoint begins no job
//   …+lossy   each of these; announcements are lost, one by one and for a while

#include <gtest/gtest.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <iterator>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "core/base/timings.h"
#include "core/succession/admission.h"
#include "sim/kernel/seeds.h"

namespace elastic::test {
namespace {

using namespace std::chrono_literals;
using succession::Admission;
using succession::Incumbent;
using succession::Reaction;
using succession::Standing;

constexpr std::size_t kEndpoint = 0;
constexpr std::size_t kSecondEndpoint = 1;  // of a standby
constexpr const char* kIds[] = {"job", "other"};
constexpr std::size_t kVoters = 3;  // with fewer nodes the job is in its coordinator's memory only
constexpr Duration kElectedWithin = 800ms;
constexpr Duration kStoreGrace = 8s;
// A node that gives up, an endpoint that was in its process, and what is known of its job.
constexpr Duration kSettleWithin = kStoreGrace + succession::kAnnouncedFor + 8s;

struct Job {
  std::string id;
  std::uint64_t lineage = 0;
  std::uint64_t term = 1;
  std::optional<std::size_t> at = {};  // the process that coordinates it
  Instant held_until = {};             // no round before
  Instant elected = {};
  Instant round_began = {};               // the first one
  std::optional<Instant> lost_here = {};  // at the endpoint, and its next coordinator is not known
  bool has_nodes = false;
  bool is_replicated = false;
  bool is_over = false;
};

struct Process {
  bool is_alive = false;
  std::uint64_t life = 0;
  Instant began = {};
  std::string own = {};  // the job of its agent; "": it has none
  bool is_standby = false;
  bool has_lost_own = false;
  std::optional<Admission> admission = {};
  std::map<std::string, Job*> jobs = {};      // that it coordinates
  std::map<std::string, Instant> noted = {};  // when a coordinator elsewhere was, by job
};

struct Node {
  std::string id;
  std::size_t process;  // its own
  bool is_alive = true;
  bool is_connected = false;
  Job* job = nullptr;                         // of which it is a member
  std::optional<std::uint64_t> lineage = {};  // of that, if it has voters
  std::optional<std::size_t> sent_to = {};    // the next process to ask
  Instant lost_at = {};                       // its coordinator
};

class AdmissionWorld : public SimWorld {
 public:
  AdmissionWorld(const std::string& scene, std::uint64_t seed, bool is_traced)
      : SimWorld(seed, is_traced),
        is_guest_scene_(scene.starts_with("guest")),
        has_standby_(scene.starts_with("standby")),
        is_strict_(!scene.ends_with("+lossy")),
        is_lossy_(!is_strict_) {
    processes_.resize(2);
  }

  SimReport play() {
    boot_endpoint();
    if (has_standby_) boot_standby();
    for (const char* id : kIds) start_nodes(id, dice_.between(2, 5));
    plan_fault();
    run(dice_.between(Duration(15s), Duration(60s)));
    heal();
    if (!run_until(kSettleWithin, [this] { return has_settled(); })) report_unsettled();
    return std::move(report_);
  }

 private:
  static std::string name_of(std::size_t process) { return "p" + std::to_string(process); }
  std::string address_of(std::size_t process) const {
    return name_of(process) + "." + std::to_string(processes_[process].life);
  }
  Incumbent incumbent_of(const Job& job) const {
    Incumbent one{.lineage = {job.lineage, 0},
                  .term = job.term,
                  .node = {*job.at + 1, processes_[*job.at].life},
                  .address = address_of(*job.at),
                  .voters = {}};
    if (job.is_replicated) one.voters.resize(kVoters);
    return one;
  }
  Duration latency() { return dice_.between(Duration(50us), Duration(5ms)); }

  // ---- Processes and nodes.

  void boot(std::size_t at, const std::string& own, bool is_standby) {
    Process& process = processes_[at];
    process.is_alive = true;
    ++process.life;
    process.began = clock_.now();
    process.own = own;
    process.is_standby = is_standby;
    process.has_lost_own = false;
    process.admission.emplace(own, is_standby);
    process.jobs.clear();
    process.noted.clear();
    trace(address_of(at) + "  starts");
  }
  void boot_endpoint() {
    if (processes_[kEndpoint].is_alive) return;
    boot(kEndpoint, is_guest_scene_ ? kIds[1] : "", false);
    if (is_guest_scene_) add_node(kIds[1], kEndpoint);
  }
  void boot_standby() {
    if (processes_[kSecondEndpoint].is_alive) return;
    boot(kSecondEndpoint, kIds[0], true);
    add_node(kIds[0], kSecondEndpoint);
  }
  void start_nodes(const std::string& id, int count) {
    for (int i = 0; i < count; ++i) {
      processes_.emplace_back();
      boot(processes_.size() - 1, id, false);
      add_node(id, processes_.size() - 1);
    }
  }
  void add_node(const std::string& id, std::size_t process) {
    nodes_.push_back({.id = id, .process = process});
    search(nodes_.size() - 1, dice_.between(Duration(0), Duration(500ms)));
  }

  // With its process.
  void end_node(std::size_t n) {
    if (nodes_[n].is_alive) crash(nodes_[n].process);
  }
  void crash(std::size_t at) {
    Process& process = processes_[at];
    if (!process.is_alive) return;
    trace(address_of(at) + "  ends");
    process.is_alive = false;
    for (Node& node : nodes_) {
      if (node.process == at) node.is_alive = node.is_connected = false;
    }
    for (const auto& [id, job] : std::exchange(process.jobs, {})) {
      drop(job);
      elect_later(job);
    }
    clock_.after(dice_.between(Duration(1ms), Duration(3s)), [this, at] {
      if (at == kEndpoint) boot_endpoint();
      if (at == kSecondEndpoint && has_standby_) boot_standby();
    });
  }
  // The job has no coordinator.
  void drop(Job* job) {
    if (job->at == kEndpoint) job->lost_here = clock_.now();
    if (job->at) processes_[*job->at].jobs.erase(job->id);
    job->at.reset();
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      if (nodes_[n].job == job && nodes_[n].is_connected) disconnect(n);
    }
  }
  void disconnect(std::size_t n) {
    nodes_[n].is_connected = false;
    nodes_[n].lost_at = clock_.now();
    search(n, dice_.between(Duration(1ms), Duration(100ms)));
  }

  // ---- A node looks for the coordinator of its job.

  void search(std::size_t n, Duration wait) {
    clock_.after(wait, [this, n] { dial(n); });
  }
  void search_later(std::size_t n) { search(n, dice_.between(Duration(100ms), Duration(500ms))); }

  void dial(std::size_t n) {
    Node& node = nodes_[n];
    if (!node.is_alive || node.is_connected) return;
    if (node.lineage && clock_.now() - node.lost_at > kStoreGrace) return end_node(n);
    const bool asks_second = has_standby_ && dice_.chance(0.5);
    const std::size_t endpoint = asks_second ? kSecondEndpoint : kEndpoint;
    const std::size_t to = std::exchange(node.sent_to, std::nullopt).value_or(endpoint);
    clock_.after(latency(), [this, n, to] { greet(n, to); });
  }

  void greet(std::size_t n, std::size_t at) {
    Node& node = nodes_[n];
    Process& process = processes_[at];
    if (!node.is_alive || node.is_connected) return;
    if (!process.is_alive) return search_later(n);
    Admission::Call call{.job = node.id};
    if (node.lineage) call.lineage = reg::LineageId{*node.lineage, 0};
    const auto answer = process.admission->answer(call, here(process, node.id), clock_.now());
    switch (answer.reaction) {
      case Reaction::kBegin: begin_job(at, node.id, answer.hold); [[fallthrough]];
      case Reaction::kEnter: return enter(n, at);
      case Reaction::kSend:
        count("sent");
        check_sent(process, node.id);
        if (answer.incumbent.address.empty()) return violate("sent to no address");
        node.sent_to = process_at(answer.incumbent.address);
        return search(n, dice_.between(Duration(1ms), Duration(100ms)));
      case Reaction::kSearch: return search_later(n);
      default: violate("the hello of a node has no such answer");
    }
  }
  std::optional<std::size_t> process_at(const std::string& address) const {
    const std::size_t at = std::stoul(address.substr(1));
    return address == address_of(at) ? std::optional(at) : std::nullopt;
  }
  std::optional<Admission::Here> here(const Process& process, const std::string& id) const {
    const auto found = process.jobs.find(id);
    if (found == process.jobs.end()) return std::nullopt;
    const Job& job = *found->second;
    const Standing standing = job.is_over         ? Standing::kOver
                              : !job.has_nodes    ? Standing::kEmpty
                              : job.is_replicated ? Standing::kReplicated
                                                  : Standing::kRunning;
    Admission::Here one{standing};
    if (job.is_replicated) one.incumbent = incumbent_of(job);
    return one;
  }

  void begin_job(std::size_t at, const std::string& id, Duration hold) {
    Process& process = processes_[at];
    trace(address_of(at) + "  begins job " + id);
    count("begun");
    if (hold > Duration::zero()) count("held");
    if (process.is_standby) violate("a standby begins a job");
    if (process.own == id && process.has_lost_own) {
      violate("a process begins the job of its agent, which goes on elsewhere");
    }
    if (const auto noted = process.noted.find(id); noted != process.noted.end()) {
      count("begun after another one");
      if (clock_.now() - noted->second < succession::kAnnouncedFor) {
        violate("a job begins where the coordinator of its id was announced lately");
      }
    }
    Job& job = jobs_.emplace_back(Job{.id = id, .lineage = dice_.next()});
    job.held_until = std::max(process.began + core::kStartHold, clock_.now() + hold);
    coordinate(at, &job);
  }
  void coordinate(std::size_t at, Job* job) {
    Process& process = processes_[at];
    process.jobs[job->id] = job;
    process.admission->began(job->id);
    process.noted.erase(job->id);
    if (process.own == job->id) process.has_lost_own = false;
    job->at = at;
    job->lost_here.reset();
  }

  void enter(std::size_t n, std::size_t at) {
    Node& node = nodes_[n];
    Job* const job = processes_[at].jobs.at(node.id);
    if (node.lineage && *node.lineage != job->lineage) {
      violate("a node enters another job of its id than its own");
    }
    if (job->is_over) return node.job == job ? end_node(n) : search_later(n);
    trace(address_of(node.process) + "  enters job " + node.id + " at " + address_of(at));
    node.job = job;
    node.is_connected = true;
    clock_.after(latency(), [job] { job->has_nodes = true; });  // it joins
    if (job->is_replicated) node.lineage = job->lineage;
    form_round(job);
    // The agent tells its process where its job is.
    Process& own = processes_[node.process];
    const bool is_elsewhere = !own.jobs.contains(node.id);
    if (is_elsewhere && (own.is_standby || own.admission->has_own())) {
      own.admission->set_own(incumbent_of(*job));
    }
  }

  // The first round gives the job its voters.
  void form_round(Job* job) {
    if (job->is_replicated || job->is_over || !job->at) return;
    const auto is_here = [&](const Node& one) { return one.job == job && one.is_connected; };
    const auto connected = std::count_if(nodes_.begin(), nodes_.end(), is_here);
    if (static_cast<std::size_t>(connected) < kVoters) return;
    if (clock_.now() < job->held_until) {
      return clock_.at(job->held_until, [this, job] { form_round(job); });
    }
    trace(address_of(*job->at) + "  job " + job->id + " has a round");
    count("rounds");
    job->is_replicated = true;
    job->round_began = clock_.now();
    for (Node& node : nodes_) {
      if (is_here(node)) node.lineage = job->lineage;
    }
    for (const Job& other : jobs_) {
      const bool is_other = &other != job && other.id == job->id && other.term > 1;
      const bool continues = other.at && !other.is_over && clock_.now() - other.elected > 100ms;
      if (is_other && continues && is_strict_) {
        violate("a round begins beside an elected coordinator of the id that announces itself");
      }
    }
  }

  // ---- The coordinator of a job ends, or is replaced.

  void end_job(Job* job) {
    trace(address_of(*job->at) + "  job " + job->id + " is over");
    count("ends");
    job->is_over = true;
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      const Node& node = nodes_[n];
      if (node.job != job || !node.is_connected) continue;
      const bool is_last = node.process == *job->at;  // its coordinator is needed until then
      const Duration wait = is_last ? 600ms : dice_.between(Duration(0), Duration(500ms));
      clock_.after(wait, [this, n] { end_node(n); });
    }
    clock_.after(700ms, [this, job] {
      if (job->at) drop(job);
    });
  }

  // Its process goes on. It may know who is next.
  void lose_job(Job* job, bool is_named) {
    const std::size_t from = *job->at;
    if (!job->is_replicated || job->is_over || !has_own_agent(*job)) return;
    trace(address_of(from) + "  loses job " + job->id);
    count("losses");
    drop(job);
    if (is_named) elect(job, from);
    std::optional<Incumbent> successor;
    if (job->at) successor = incumbent_of(*job);
    Process& process = processes_[from];
    process.admission->lost(job->id, successor, clock_.now());
    if (process.own == job->id) {
      process.has_lost_own = true;
    } else if (successor) {
      process.noted[job->id] = clock_.now();
    }
    if (!job->at) elect_later(job);
  }

  // An agent in whose process its own job is coordinated is in that job.
  bool has_own_agent(const Job& job) const {
    if (processes_[*job.at].own != job.id) return true;
    return std::any_of(nodes_.begin(), nodes_.end(), [&](const Node& one) {
      return one.process == *job.at && one.is_connected && one.job == &job;
    });
  }

  void elect_later(Job* job) {
    clock_.after(dice_.between(Duration(10ms), kElectedWithin), [this, job] { elect(job, {}); });
  }
  // Two of its voters are needed. Without them the job is lost for good.
  void elect(Job* job, std::optional<std::size_t> former) {
    if (job->at || job->is_over || !job->is_replicated) return;
    std::vector<std::size_t> members;
    for (std::size_t n = 0; n < nodes_.size(); ++n) {
      if (nodes_[n].is_alive && nodes_[n].job == job) members.push_back(n);
    }
    if (members.size() < 2) return;
    std::vector<std::size_t> candidates;
    for (const std::size_t n : members) {
      const std::size_t at = nodes_[n].process;
      if (at != former && !processes_[at].jobs.contains(job->id)) candidates.push_back(at);
    }
    if (candidates.empty()) return;
    check_hold(*job);
    ++job->term;
    job->elected = clock_.now();
    coordinate(pick(candidates), job);
    trace(address_of(*job->at) + "  is elected for job " + job->id);
    count("elections");
    for (const std::size_t n : members) {
      if (dice_.chance(0.7)) nodes_[n].sent_to = job->at;
    }
    announce(job, job->term);
  }

  // The next job of the id, at the endpoint, waits for as long as an election may take.
  void check_hold(const Job& job) {
    for (const Job& other : jobs_) {
      const bool is_other = &other != &job && other.id == job.id && other.is_replicated;
      if (is_other && job.lost_here && other.round_began > *job.lost_here) {
        violate("a round begins while voters of the id elect a coordinator");
      }
    }
  }

  void announce(Job* job, std::uint64_t term) {
    if (job->term != term || !job->at || job->is_over) return;
    for (const std::size_t to : {kEndpoint, kSecondEndpoint}) {
      if (to == *job->at || (is_lossy_ && (is_cut_ || dice_.chance(0.25)))) continue;
      clock_.after(latency(), [this, to, job, one = incumbent_of(*job)] { meet(to, job, one); });
    }
    clock_.after(succession::kAnnounceInterval, [this, job, term] { announce(job, term); });
  }
  // An elected coordinator announces itself here.
  void meet(std::size_t at, Job* job, const Incumbent& theirs) {
    Process& process = processes_[at];
    if (!process.is_alive) return;
    const Admission::Call call{.job = job->id,
                               .from = Admission::Call::From::kCoordinator,
                               .lineage = {},
                               .announced = theirs};
    const auto ours = here(process, job->id);
    const auto answer = process.admission->answer(call, ours, clock_.now());
    const bool is_noted = answer.reaction == Reaction::kNote && answer.incumbent == theirs;
    if (is_noted) process.noted[job->id] = clock_.now();
    const bool gives_way =
        answer.reaction == Reaction::kGiveWay ||
        (answer.reaction == Reaction::kMeet && is_theirs(ours->incumbent, theirs));
    if (gives_way) dissolve(process.jobs.at(job->id), theirs);
    clock_.after(latency(), [this, job, theirs, met = answer.incumbent] {
      if (!job->at || job->term != theirs.term || met.term == 0) return;
      if (is_theirs(incumbent_of(*job), met)) dissolve(job, met);
    });
  }
  static bool is_theirs(const std::optional<Incumbent>& ours, const Incumbent& theirs) {
    return succession::meet(ours, theirs) == succession::Meeting::kTheirs;
  }

  // Its nodes join the other job of the id.
  void dissolve(Job* job, const Incumbent& by) {
    trace(address_of(*job->at) + "  job " + job->id + " dissolves for that at " + by.address);
    count("dissolved");
    if (job->term > by.term) violate("a job that goes on dissolves for one that began later");
    std::vector<Node*> told;
    for (Node& node : nodes_) {
      if (node.job == job && node.is_connected) told.push_back(&node);
    }
    Process& process = processes_[*job->at];
    drop(job);
    process.admission->lost(job->id, by, clock_.now());
    if (process.own == job->id) process.has_lost_own = true;
    process.noted[job->id] = clock_.now();
    for (Node* const one : told) {
      Node& node = *one;
      node.job = nullptr;
      node.lineage.reset();
      if (by.is_replicated()) node.lineage = by.lineage.high;
      node.sent_to = process_at(by.address);
    }
  }

  // What a process knows of a job that it does not run expires, but for the job of its agent.
  void check_sent(const Process& process, const std::string& id) {
    if (process.own == id) return;
    const auto noted = process.noted.find(id);
    if (noted == process.noted.end()) return violate("sent to a coordinator that none has named");
    if (clock_.now() - noted->second >= succession::kAnnouncedFor) {
      violate("sent to a coordinator that does not announce itself any more");
    }
  }

  // ---- What happens.

  void plan_fault() {
    clock_.after(dice_.between(Duration(100ms), Duration(4s)), [this] {
      if (is_healed_) return;
      cause_fault();
      observe();
      plan_fault();
    });
  }
  void cause_fault() {
    const std::string id = kIds[dice_.between(0, 1)];
    Job* const job = coordinated(id);
    switch (dice_.between(0, 10)) {
      case 0:
      case 1: return start_nodes(id, has_nodes(id) ? 1 : dice_.between(1, 5));
      case 2:
        if (job != nullptr && job->has_nodes && !job->is_over) end_job(job);
        return;
      case 3:
      case 4:
        if (job != nullptr) lose_job(job, false);
        if (dice_.chance(0.4)) start_nodes(id, 3);
        return;
      case 5:
        if (job != nullptr) lose_job(job, true);
        return;
      case 6: return crash(kEndpoint);
      case 7: return crash(has_standby_ ? kSecondEndpoint : kEndpoint);
      case 8:
      case 9: return kill(id, dice_.chance(0.4));
      default: break;
    }
    is_cut_ = true;  // in a lossy scene
    clock_.after(dice_.between(Duration(500ms), Duration(6s)), [this] { is_cut_ = false; });
  }
  void kill(const std::string& id, bool is_all) {
    std::vector<std::size_t> alive;
    for (const Node& node : nodes_) {
      if (node.is_alive && node.id == id) alive.push_back(node.process);
    }
    if (alive.empty()) return;
    if (!is_all) return crash(pick(alive));
    count("killed");
    for (const std::size_t at : alive) crash(at);
  }
  void observe() {
    Process& process = processes_[kEndpoint];
    if (!process.is_alive) return;
    for (const char* id : kIds) {
      const Admission::Call call{.job = id, .from = Admission::Call::From::kObserver};
      const auto answer = process.admission->answer(call, here(process, id), clock_.now());
      if (answer.reaction == Reaction::kSend) check_sent(process, id);
    }
  }

  std::size_t pick(const std::vector<std::size_t>& some) {
    return some[static_cast<std::size_t>(dice_.between(0, static_cast<int>(some.size()) - 1))];
  }
  // One of the jobs of the id that have a coordinator; null: there is none.
  Job* coordinated(const std::string& id) {
    std::vector<std::size_t> found;
    for (std::size_t i = 0; i < jobs_.size(); ++i) {
      if (jobs_[i].id == id && jobs_[i].at) found.push_back(i);
    }
    return found.empty() ? nullptr : &jobs_[pick(found)];
  }
  bool has_nodes(const std::string& id) const {
    return std::any_of(nodes_.begin(), nodes_.end(),
                       [&](const Node& one) { return one.is_alive && one.id == id; });
  }

  // ---- In the end every id has one job, which its nodes and newcomers are in.

  void heal() {
    trace("---- everything heals");
    is_healed_ = true;
    is_lossy_ = is_cut_ = false;
    boot_endpoint();
    for (const char* id : kIds) start_nodes(id, dice_.between(1, 3));
  }
  bool has_settled() const {
    if (!processes_[kEndpoint].is_alive) return false;
    return std::all_of(std::begin(kIds), std::end(kIds), [this](const char* id) {
      const Job* job = nullptr;
      for (const Node& node : nodes_) {
        if (!node.is_alive || node.id != id) continue;
        if (!node.is_connected || node.job->is_over) return false;
        if (job != nullptr && job != node.job) return false;
        job = node.job;
      }
      return true;
    });
  }
  void report_unsettled() {
    std::string who;
    for (const Node& node : nodes_) {
      if (!node.is_alive) continue;
      who += " " + address_of(node.process) + "(" + node.id + ")";
      if (node.is_connected) who += "@" + (node.job->at ? address_of(*node.job->at) : "?");
    }
    violate("the nodes of an id are not in one job:" + who);
  }

  const bool is_guest_scene_;
  const bool has_standby_;
  const bool is_strict_;  // announcements arrive
  bool is_lossy_;
  bool is_cut_ = false;
  bool is_healed_ = false;
  std::deque<Process> processes_;
  std::deque<Node> nodes_;
  std::deque<Job> jobs_;
};

SimReport simulate_admission(const std::string& scene, std::uint64_t seed, bool is_traced) {
  return AdmissionWorld(scene, seed, is_traced).play();
}

constexpr Simulation kAdmission = {"AdmissionSim", simulate_admission};

Totals sweep_admission(const std::string& scene) {
  const Totals total = sweep(kAdmission, scene, 500);
  if (total.can_be_judged()) {
    EXPECT_GT(total["elections"], total.seeds) << scene;
    EXPECT_GT(total["ends"], total.seeds / 2) << scene;
    EXPECT_GT(total["killed"], total.seeds / 4) << scene;
    EXPECT_GT(total["sent"], total.seeds) << scene;
    EXPECT_GT(total["begun after another one"], total.seeds / 10) << scene;
  }
  return total;
}

TEST(AdmissionSim, EveryIdHasOneJobWhateverItsFormerOneCameTo) { sweep_admission("separate"); }
TEST(AdmissionSim, AGuestsJobIsForgottenAndThatOfTheAgentIsNot) { sweep_admission("guest"); }
TEST(AdmissionSim, AStandbyBeginsNoJob) { sweep_admission("standby"); }
TEST(AdmissionSim, TwoJobsOfAnIdBecomeOne) {
  for (const char* scene : {"separate+lossy", "guest+lossy", "standby+lossy"}) {
    const Totals total = sweep_admission(scene);
    if (!total.can_be_judged()) continue;
    EXPECT_GT(total["dissolved"], total.seeds / 10) << scene;
  }
}
TEST(AdmissionSim, OneSeedIsOneRun) {
  for (const char* scene : {"separate", "guest", "standby", "separate+lossy"}) {
    expect_same_run(kAdmission, scene);
  }
}
TEST(AdmissionSim, Replay) { replay(kAdmission); }

}  // namespace
}  // namespace elastic::test
