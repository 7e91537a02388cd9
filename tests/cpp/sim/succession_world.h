#pragma once

// One whole job: agents with their sessions, voters, coordinators that come and go, from one seed.
// Each process has the machines that production runs (session, succession, register, rendezvous,
// gate); the network between them cuts links one way or both, and delays. The scenes:
//
//   host-lost         3 hosts; the one of the hosting agent is lost
//   process-lost      the same, and only the agent's process ends
//   done-lost         the same as host-lost, and the agent's workers are done
//   standalone-lost   4 nodes; a separate coordinator ends and is not started again
//   standalone-again  the same, and it is started again at once, without state
//   standalone-first  the same, and the nodes reach it before each other
//   standalone-next   the separate coordinator loses a job, and the next job of its id begins there
//   one-by-one        all nodes but one are lost, one after the other
//   standalone-few    the same with a separate coordinator
//   hand-over         the hosting agent resigns
//   hand-over-killed  the same, and a process is killed before the next coordinator is in force
//   growth            a node joins at a step, and meanwhile the coordinator resigns or is lost, or
//                     another node joins, leaves, fails or is lost
//   partition         five hosts: the coordinator's and another one are cut off, then it heals
//   minority          the same while the others' workers are done, and until the minority gives up
//   leave             the same as partition, and the other node that is cut off leaves
//   leave-together    all nodes but the coordinator's leave at once
//   two-of-five       two of five hosts are lost at once, the coordinator's among them
//   witness           two nodes and a witness: one of them, or a link, is lost
//   same-id           a job's processes end, and the next job of its id has the same witness
//   majority-lost     a majority of the voters is lost for good: the other nodes give up
//   return            the coordinator's host is replaced, and begins the job again at the endpoint
//   second-job        the same while it does not reach the others
//   faults            crashes, cut links, leaves and failing workers at random
//   witness-faults    the same, with two nodes and a witness
//   growth-faults     the same as faults while nodes join and leave at agreed steps
//   witness-growth    the same, with two nodes and a witness
//   growth-lost       the same while the ranks agree on a step

#include <cstdint>
#include <string>

#include "sim/sim_server.h"

namespace elastic::test {

SimReport simulate_succession(const std::string& scene, std::uint64_t seed, bool is_traced,
                              ServiceRule deleted = ServiceRule::kNone);

}  // namespace elastic::test
