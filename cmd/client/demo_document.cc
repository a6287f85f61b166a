#include "cmd/client/demo_document.h"

#include <algorithm>
#include <random>
#include <set>
#include <string_view>
#include <vector>

namespace winnow {
namespace {

using Random = std::mt19937_64;

size_t Below(Random& random, size_t limit) {
  return random() % limit;
}

// Three syllables, perhaps closed: the kind of name that the demo model has been asked about.
std::string Name(Random& random) {
  constexpr std::string_view kConsonants = "bcdfghjklmnprstvz", kVowels = "aeiou", kEnds = "nrstlm";
  std::string name;
  for (int syllable = 0; syllable < 3; ++syllable) {
    name += kConsonants[Below(random, kConsonants.size())];
    name += kVowels[Below(random, kVowels.size())];
  }
  if (Below(random, 2) == 0) name += kEnds[Below(random, kEnds.size())];
  return name;
}

std::string Digits(Random& random) {
  std::string digits;
  for (int i = 0; i < 6; ++i) digits += static_cast<char>('0' + Below(random, 10));
  return digits;
}

constexpr std::string_view kSubjects[] = {
    "The build system",   "The scheduler",     "A background worker",  "The command line tool",
    "The parser",         "The network layer", "The configuration",    "A plugin",
    "The test runner",    "The log writer",    "The file watcher",     "The package manager",
    "The cache",          "A client library",  "The memory allocator", "The type checker",
    "The release script", "The web server",    "The database driver",  "The event loop",
};
constexpr std::string_view kVerbs[] = {
    "reads",    "writes",    "checks",     "updates",  "collects", "validates", "releases", "reports",
    "compares", "schedules", "compresses", "restores", "creates",  "removes",   "replaces", "inspects",
};
constexpr std::string_view kObjects[] = {
    "the list of open files",     "every changed source file",
    "the default options",        "a table of symbols",
    "the headers of the request", "all pending jobs",
    "the state of each thread",   "the output directory",
    "the version of the module",  "temporary buffers",
    "the arguments of the call",  "the index of the archive",
    "the names of the variables", "old log entries",
    "the result of the query",    "the environment of the process",
};
constexpr std::string_view kEndings[] = {
    "before the first test is run",    "when the program starts",        "unless the user asks for another order",
    "after each successful build",     "if the option is set",           "without blocking the main thread",
    "in the order of their creation",  "so that errors are found early", "and returns a status code",
    "whenever a connection is closed", "at the end of every iteration",  "as described in the reference manual",
    "because the format may change",   "until the queue is empty",       "and prints a short message",
    "only once for each directory",
};
constexpr std::string_view kRemarks[] = {
    "This behaviour can be changed in the settings file.",
    "The default value is suitable for most projects.",
    "See the next section for an example.",
    "Note that the order of the arguments matters.",
    "Older releases used a different name for this function.",
    "An error is raised when the value is missing.",
    "The same rule applies to nested modules.",
    "There is no limit on the number of entries.",
    "Callers must close the handle after use.",
    "This is useful when several programs share one directory.",
    "The method returns an empty list if nothing was found.",
    "All paths are relative to the root of the project.",
};

template <size_t N>
std::string_view Pick(Random& random, const std::string_view (&choices)[N]) {
  return choices[Below(random, N)];
}

std::string Paragraph(Random& random) {
  std::string text;
  const size_t sentences = 2 + Below(random, 3);
  for (size_t i = 0; i < sentences; ++i) {
    if (!text.empty()) text += ' ';
    if (Below(random, 4) == 0) {
      text += Pick(random, kRemarks);
      continue;
    }
    text += Pick(random, kSubjects);
    for (std::string_view part : {Pick(random, kVerbs), Pick(random, kObjects), Pick(random, kEndings)}) {
      text += ' ';
      text += part;
    }
    text += '.';
  }
  return text;
}

}  // namespace

DemoDocument MakeDemoDocument(uint64_t seed, size_t num_characters, int num_facts) {
  Random random(seed);
  std::set<std::string> used;
  std::vector<std::string> names, facts;
  while (static_cast<int>(names.size()) < num_facts) {
    std::string name = Name(random);
    if (!used.insert(name).second) continue;
    facts.push_back("The code of " + name + " is " + Digits(random) + ".");
    names.push_back(std::move(name));
  }
  size_t left = num_characters;
  for (const std::string& fact : facts) left -= std::min(left, fact.size() + 1);
  std::vector<std::string> lines;
  while (true) {
    std::string paragraph = Paragraph(random);
    if (paragraph.size() + 1 > left) break;
    left -= paragraph.size() + 1;
    lines.push_back(std::move(paragraph));
  }
  for (const std::string& fact : facts) lines.insert(lines.begin() + Below(random, lines.size() + 1), fact);

  DemoDocument document;
  for (const std::string& line : lines) document.text += (document.text.empty() ? "" : "\n") + line;
  const size_t asked = Below(random, names.size());
  document.question = "What is the code of " + names[asked] + "?";
  document.answer = facts[asked];
  return document;
}

}  // namespace winnow
