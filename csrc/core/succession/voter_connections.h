#pragma once

// The connections of a voter port: on which one a node's last frame arrived, and its reply goes
// back. Pure.

#include <map>
#include <optional>

#include "core/succession/succession_types.h"

namespace elastic::succession {

class VoterConnections {
 public:
  // A frame of the node arrived. A connection is that of one process: what it sends under another
  // id replaces the first one, so that both maps are limited by the number of connections.
  void note(const NodeId& node, ConnectionId connection) {
    if (connection == 0) return;
    const auto [sender, is_new] = sender_of_.try_emplace(connection, node);
    if (!is_new && sender->second != node) {
      forget(sender->second, connection);
      sender->second = node;
    }
    last_of_[node] = connection;
  }
  // The node that has lost its last one; nullopt: none has.
  std::optional<NodeId> end(ConnectionId connection) {
    const auto sender = sender_of_.find(connection);
    if (sender == sender_of_.end()) return std::nullopt;
    const NodeId node = sender->second;
    sender_of_.erase(sender);
    if (!forget(node, connection)) return std::nullopt;
    return node;
  }
  // 0: the node has none.
  ConnectionId last_of(const NodeId& node) const {
    const auto found = last_of_.find(node);
    return found == last_of_.end() ? 0 : found->second;
  }

 private:
  // False: the node has a later one.
  bool forget(const NodeId& node, ConnectionId connection) {
    const auto found = last_of_.find(node);
    if (found == last_of_.end() || found->second != connection) return false;
    last_of_.erase(found);
    return true;
  }

  std::map<NodeId, ConnectionId> last_of_;
  std::map<ConnectionId, NodeId> sender_of_;  // the last one, of each open connection
};

}  // namespace elastic::succession
