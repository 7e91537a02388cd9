#include "core/rendezvous/failure_policy.h"

#include <algorithm>
#include <charconv>

#include "core/base/check.h"
#include "core/base/text.h"

namespace elastic::core {
namespace {

struct KindName {
  FailureKind kind;
  std::string_view word;   // in a setting of the job; "": of no rule of the user
  std::string_view shown;  // in a file
};
constexpr KindName kKinds[] = {
    {FailureKind::kWorker, "worker", "worker"},
    {FailureKind::kHang, "hang", "hang"},
    {FailureKind::kNodeLost, "node-lost", "lost-node"},
    {FailureKind::kStraggler, "straggler", "straggler"},
    {FailureKind::kCheck, "check", "check"},
    {FailureKind::kNodeLeft, "", "a node that leaves"},
    {FailureKind::kUnstartable, "", "a program that cannot be executed"},
};
constexpr std::pair<std::string_view, FailureAction> kActions[] = {
    {"stop", FailureAction::kStop},
    {"restart", FailureAction::kRestart},
    {"exclude", FailureAction::kExclude},
};
constexpr FailureClass kClasses[] = {FailureClass::kUserWorker, FailureClass::kUserInput,
                                     FailureClass::kPlatform, FailureClass::kInfrastructure};

// Takes the text up to the mark, and the mark.
std::string_view take(std::string_view* text, char mark) {
  const std::string_view word = text->substr(0, text->find(mark));
  text->remove_prefix(std::min(word.size() + 1, text->size()));
  return word;
}

bool read_number(std::string_view text, int* number) {
  const auto [end, error] = std::from_chars(text.data(), text.data() + text.size(), *number);
  return error == std::errc() && end == text.data() + text.size() && *number >= 0;
}

bool read_ranges(std::string_view text, std::vector<std::pair<int, int>>* ranges) {
  while (!text.empty()) {
    std::string_view last = take(&text, ',');
    const std::string_view first = take(&last, '-');
    auto& [low, high] = ranges->emplace_back();
    if (!read_number(first, &low)) return false;
    high = low;
    if (!last.empty() && !read_number(last, &high)) return false;
  }
  return !ranges->empty();
}

bool read_class(std::string_view text, std::optional<FailureClass>* failure_class) {
  std::string word(text);
  std::replace(word.begin(), word.end(), '-', ' ');
  for (const FailureClass one : kClasses) {
    if (to_string(one) == word) *failure_class = one;
  }
  return failure_class->has_value();
}

bool read_kind(std::string_view text, std::optional<FailureKind>* kind) {
  for (const KindName& one : kKinds) {
    if (one.word == text && !text.empty()) *kind = one.kind;
  }
  return kind->has_value();
}

bool read_action(std::string_view text, FailureAction* action) {
  for (const auto& [word, one] : kActions) {
    if (word == text) *action = one;
  }
  return kActions[static_cast<std::size_t>(*action)].first == text;
}

bool read_conditions(std::string_view text, std::vector<FailureCondition>* conditions) {
  while (!text.empty()) {
    std::string_view value = take(&text, ';');
    const std::string_view what = take(&value, ':');
    FailureCondition& one = conditions->emplace_back();
    if (what == "exit") {
      one.kind = FailureKind::kWorker;
      if (!read_ranges(value, &one.codes)) return false;
    } else if (!(what == "class" ? read_class(value, &one.failure_class)
                                 : read_kind(what, &one.kind))) {
      return false;
    }
  }
  return !conditions->empty();
}

bool matches(const FailureCondition& condition, const FailureEvent& event) {
  if (condition.kind && *condition.kind != event.kind) return false;
  if (condition.failure_class && *condition.failure_class != event.failure_class) return false;
  const auto has_code = [&](const std::pair<int, int>& range) {
    return range.first <= event.exit_code && event.exit_code <= range.second;
  };
  return condition.codes.empty() ||
         std::any_of(condition.codes.begin(), condition.codes.end(), has_code);
}

// How many failures in a row, up to this one, were on its host.
int in_a_row(const std::vector<PastFailure>& past, const FailureEvent& event) {
  const auto other = std::find_if(past.rbegin(), past.rend(),
                                  [&](const PastFailure& one) { return one.host != event.host; });
  return static_cast<int>(other - past.rbegin()) + 1;
}

bool is_recent(const FailureRule& rule, const PastFailure& one, Instant now) {
  return rule.within == Duration::zero() || now - one.at <= rule.within;
}

// Failures of the event's host, with this one.
int count_of_host(const FailureRule& rule, const std::vector<PastFailure>& past,
                  const FailureEvent& event, Instant now) {
  const auto count = std::count_if(past.begin(), past.end(), [&](const PastFailure& one) {
    return one.host == event.host && is_recent(rule, one, now);
  });
  return static_cast<int>(count) + 1;
}

bool matches(const FailureRule& rule, const std::vector<PastFailure>& past,
             const FailureEvent& event, Instant now) {
  if (rule.enough_left && *rule.enough_left != event.enough_left) return false;
  const bool is_on =
      rule.on.empty() || std::any_of(rule.on.begin(), rule.on.end(),
                                     [&](const auto& one) { return matches(one, event); });
  return is_on && event.error.find(rule.text) != event.error.npos &&
         in_a_row(past, event) >= rule.same_host &&
         (rule.host_count == 0 || count_of_host(rule, past, event, now) >= rule.host_count);
}

bool is_exhausted(const FailureRule& rule, int index, const std::vector<PastFailure>& past,
                  Instant now) {
  if (rule.max < 0) return false;
  const auto used = std::count_if(past.begin(), past.end(), [&](const PastFailure& one) {
    return one.rule == index && is_recent(rule, one, now);
  });
  return used >= rule.max;
}

std::string allowance(const FailureRule& rule) {
  std::string text = "allows " + count_text(rule.max, "restart");
  if (rule.within > Duration::zero()) text += " within " + duration_text(rule.within);
  return text;
}

std::string effect_of(FailureAction action, const FailureEvent& event) {
  if (action == FailureAction::kStop) return " ends the job";
  if (action == FailureAction::kRestart || event.host.empty()) return "";
  return " excludes host " + event.host;
}

void append(const std::string& text, std::string_view separator, std::string* all) {
  if (!all->empty()) all->append(separator);
  all->append(text);
}

// Codes of signals are told apart, as in a file.
std::string describe(const FailureCondition& condition) {
  if (condition.failure_class) {
    std::string name(to_string(*condition.failure_class));
    std::replace(name.begin(), name.end(), ' ', '-');
    return "class " + name;
  }
  std::string codes;
  std::string signals;
  for (const auto& [first, last] : condition.codes) {
    const char* const name = first == last ? signal_name(first - 128) : nullptr;
    if (name != nullptr) {
      append(std::string(name).substr(3), ",", &signals);
    } else {
      append(std::to_string(first) + (first == last ? "" : "-" + std::to_string(last)), ",",
             &codes);
    }
  }
  std::string text;
  if (!codes.empty()) text = "exit " + codes;
  if (!signals.empty()) append("signal " + signals, " or ", &text);
  if (!text.empty()) return text;
  for (const KindName& one : kKinds) {
    if (one.kind == condition.kind) return std::string(one.shown);
  }
  return "any";
}

bool is_about_stragglers(const FailureRule& rule) {
  return rule.on.size() == 1 && rule.on.front().kind == FailureKind::kStraggler;
}

std::vector<FailureRule> default_rules(const JobSettings& settings) {
  const std::vector<FailureCondition> departures = {{.kind = FailureKind::kNodeLost},
                                                    {.kind = FailureKind::kCheck},
                                                    {.kind = FailureKind::kNodeLeft}};
  const std::string budget = "--max-restarts=" + std::to_string(settings.max_restarts);
  std::vector<FailureRule> rules = {{.on = departures, .enough_left = true, .counts = false}};
  if (settings.on_loss == LossPolicy::kFail) {
    rules.push_back({.name = "lost nodes are not replaced",
                     .origin = "--on-node-loss=fail",
                     .on = departures,
                     .enough_left = false,
                     .action = FailureAction::kStop,
                     .counts = true});
  }
  rules.push_back({.origin = budget, .counts = true});
  return rules;
}

}  // namespace

FailureDecision decide_failure(const FailureRules& rules, const std::vector<PastFailure>& past,
                               const FailureEvent& event, Instant now) {
  const FailureDecision by_default = decide_by_default(rules, event);
  for (std::size_t i = 0; i < rules.of_user.size(); ++i) {
    const FailureRule& rule = rules.of_user[i];
    if (!matches(rule, past, event, now)) continue;
    const int index = static_cast<int>(i);
    const bool counts = rule.counts.value_or(by_default.counts);
    if (rule.action != FailureAction::kStop && is_exhausted(rule, index, past, now)) {
      return {FailureAction::kStop, counts, index, rule.name + " " + allowance(rule)};
    }
    return {rule.action, counts, index, rule.name + effect_of(rule.action, event)};
  }
  if (!event.advice) return by_default;
  const FailureAdvice& advice = *event.advice;
  std::string why = advice.from;
  if (!advice.reason.empty()) why += " (" + advice.reason + ")";
  return {advice.action, advice.counts.value_or(by_default.counts), -1,
          why + effect_of(advice.action, event)};
}

FailureDecision decide_by_default(const FailureRules& rules, const FailureEvent& event) {
  const FailureRule* const rule = find_rule(rules.defaults, event);
  ELASTIC_CHECK(rule != nullptr);
  return {rule->action, rule->counts.value_or(true), -1,
          rule->action == FailureAction::kStop ? rule->name : ""};
}

const FailureRule* find_rule(const std::vector<FailureRule>& rules, const FailureEvent& event) {
  const auto found = std::find_if(rules.begin(), rules.end(), [&](const FailureRule& rule) {
    return matches(rule, {}, event, {});
  });
  return found == rules.end() ? nullptr : &*found;
}

std::string describe(const FailureRule& rule) {
  std::string text;
  for (const FailureCondition& one : rule.on) append(describe(one), " or ", &text);
  if (rule.on.empty()) text = "any";
  if (rule.enough_left) text += *rule.enough_left ? ", MIN nodes left" : ", fewer than MIN left";
  if (!rule.text.empty()) text += ", error with '" + rule.text + "'";
  if (rule.same_host > 0) text += ", " + std::to_string(rule.same_host) + " in a row on one host";
  const std::string within =
      rule.within > Duration::zero() ? " within " + duration_text(rule.within) : "";
  if (rule.host_count > 0) {
    text += ", " + std::to_string(rule.host_count) + " on one host" + (rule.max < 0 ? within : "");
  }
  if (rule.lasting > Duration::zero()) text += " for " + duration_text(rule.lasting);
  text += ": ";
  switch (rule.action) {
    case FailureAction::kStop: text += "stop"; break;
    case FailureAction::kRestart:
      text += rule.node_leaves ? "this node leaves, with that code" : "restart";
      break;
    case FailureAction::kExclude: text += "exclude its host"; break;
  }
  if (rule.counts && rule.action != FailureAction::kStop) {
    text += *rule.counts ? ", counted" : ", not counted";
  }
  if (rule.max >= 0) text += ", at most " + std::to_string(rule.max) + within;
  return rule.origin.empty() ? text : text + " (" + rule.origin + ")";
}

Result<FailureRule> parse_failure_rule(std::string_view text, int number) {
  FailureRule rule;
  rule.name = "rule " + std::to_string(number) + " of the failure policy";
  const std::string_view all = text;
  while (!text.empty()) {
    const std::string_view name = take(&text, '=');
    if (name == "text") {
      rule.text = text;
      break;
    }
    const std::string_view value = take(&text, ' ');
    int read = 0;
    bool is_read = false;
    if (name == "from") {
      is_read = !value.empty();
      rule.name = rule.origin = value;
    } else if (name == "on") {
      is_read = read_conditions(value, &rule.on);
    } else if (name == "do") {
      is_read = read_action(value, &rule.action);
    } else if (read_number(value, &read)) {
      is_read = true;
      if (name == "host") {
        rule.same_host = read;
      } else if (name == "times") {
        rule.host_count = read;
      } else if (name == "for") {
        rule.lasting = std::chrono::seconds(read);
      } else if (name == "count") {
        rule.counts = read != 0;
      } else if (name == "max") {
        rule.max = read;
      } else if (name == "within") {
        rule.within = std::chrono::seconds(read);
      } else if (name == "line") {
        rule.origin = "line " + std::to_string(read);
        rule.name =
            "rule " + std::to_string(number) + " (" + rule.origin + ") of the failure policy";
      } else {
        is_read = false;
      }
    }
    if (!is_read) {
      return Status(StatusCode::kInvalidArgument, "failure policy: rule " + std::to_string(number) +
                                                      " cannot be read: " + std::string(all));
    }
  }
  return rule;
}

const FailureRule* find_straggler_rule(const std::vector<FailureRule>& rules, Duration idle) {
  const auto found = std::find_if(rules.begin(), rules.end(), [&](const FailureRule& rule) {
    return is_about_stragglers(rule) && idle >= rule.lasting;
  });
  return found == rules.end() ? nullptr : &*found;
}

std::optional<Duration> straggler_limit(const std::vector<FailureRule>& rules) {
  std::optional<Duration> limit;
  for (const FailureRule& rule : rules) {
    if (is_about_stragglers(rule)) limit = std::min(limit.value_or(rule.lasting), rule.lasting);
  }
  return limit;
}

bool has_policy(const JobSettings& settings) {
  return std::ranges::any_of(settings.extra,
                             [](const auto& one) { return one.first.starts_with(kPolicyFile); });
}

std::string agreed_text(std::string_view name, const std::string& value) {
  if (!name.starts_with(kPolicySetting)) return value;
  Result<FailureRule> rule = parse_failure_rule(value, 0);
  if (!rule.ok()) return value;
  rule->origin.clear();
  return describe(*rule);
}

int stop_without_progress(const JobSettings& settings) {
  int rounds = 0;
  for (const auto& [name, value] : settings.extra) {
    if (name == kProgressSetting && !read_number(value, &rounds)) rounds = 0;
  }
  return rounds;
}

FailureRules failure_rules(const JobSettings& settings) {
  std::vector<FailureRule> rules;
  for (const auto& [name, value] : settings.extra) {
    if (!name.starts_with(kPolicySetting)) continue;
    Result<FailureRule> rule = parse_failure_rule(value, static_cast<int>(rules.size()) + 1);
    if (rule.ok()) rules.push_back(std::move(*rule));
  }
  return {std::move(rules), default_rules(settings)};
}

}  // namespace elastic::core
