#pragma once

// One whole job: agents with their sessions, a keeper of its record, coordinators that come and go,
// from one seed. Each process has the machines that production runs (session, succession, register,
// rendezvous, gate); the network between them cuts links one way or both, and delays. Scenes:
//
//   start             all processes begin at once
//   host-lost         3 hosts; the one of the hosting agent is lost
//   process-lost      the same, and only the agent's process ends
//   done-lost         the same as host-lost, and the agent's workers are done
//   one-by-one        all nodes but one are lost, one after the other
//   hand-over         the hosting agent resigns
//   hand-over-killed  the same, and a process is killed before the next coordinator is in force
//   growth            a node joins at a step, and meanwhile the coordinator resigns or is lost, or
//                     another node joins, leaves, fails or is lost
//   partition         five hosts: the coordinator's and another one are cut off, then it heals
//   minority          the same while the others' workers are done, and until the minority gives up
//   leave             the same as partition, and the other node that is cut off leaves
//   leave-together    all nodes but the coordinator's leave at once
//   two-of-five       two of five hosts are lost at once, the coordinator's among them
//   next-job          a job's processes end, and others begin with its record: in a store or a file
//   keeper-lost       a majority of the voters, or the store, is lost for good: the nodes give up
//   return            the coordinator's host is replaced, and newcomers know the endpoint only
//   faults            crashes, cut links, leaves and failing workers at random
//   growth-faults     the same while nodes join and leave at agreed steps
//   growth-lost       the same as keeper-lost while the ranks agree on a step
//
// With voters only:
//
//   hand-over-one     the same as hand-over with one voter; then the successor resigns
//   one-killed        the same as hand-over-killed with one voter
//   standalone-lost   4 nodes; a separate coordinator ends and is not started again
//   standalone-again  the same, and it is started again at once, without state
//   standalone-first  the same, and the nodes reach it before each other
//   standalone-next   the separate coordinator loses a job, and the next job of its id begins there
//   standalone-few    the same as one-by-one with a separate coordinator
//   witness           two nodes and a witness: one of them, or a link, is lost
//   same-id           a job's processes end, and the next job of its id has the same witness
//   second-job        the same as return while it does not reach the others: it begins another job
//   witness-faults    the same as faults, with two nodes and a witness
//   witness-growth    the same as growth-faults, with two nodes and a witness
//
// With a store only ("+store": it reports changes; "+polled": it does not):
//
//   cut-off           the coordinator reaches the store, and no other process
//   alone             it reaches the other processes, and not the store
//
// Where a separate coordinator alone keeps the record, in its state file ("+file") or in memory
// ("+one"), those of the scenes in which only nodes are lost or cut off, keeper-lost (a full disk),
// faults, and
//
//   again             the coordinator is started again at once, with its file
//   older-file        the same with a former version of the file, while a node may be lost
//   slow-disk         a node leaves while the file cannot be written, and then slowly

#include <cstdint>
#include <string>
#include <vector>

#include "sim/sim_server.h"

namespace elastic::test {

// Those with which the scene makes sense: "+store" for <scene>+store.
std::vector<std::string> keepers_of(const std::string& scene);
SimReport simulate_succession(const std::string& scene, std::uint64_t seed, bool is_traced,
                              ServiceRule deleted = ServiceRule::kNone);

}  // namespace elastic::test
