#include <cstdio>
#include <string_view>

#include "cmd/commands.h"
#include "cmd/help.h"

namespace winnow {
namespace {

int Main(int argc, char** argv) {
  if (argc < 2) {
    std::fputs(ProgramHelp().c_str(), stderr);
    return kExitUsage;
  }
  std::string_view name = argv[1];
  if (name == "--help" || name == "-h") name = "help";
  if (name == "--version") name = "version";
  if (const Command* command = FindCommand(AllCommands(), name)) {
    return RunCommand(*command, Arguments(argv + 2, argv + argc));
  }
  std::fprintf(stderr, "%s\n", UnknownCommand(AllCommands(), name).c_str());
  return kExitUsage;
}

}  // namespace
}  // namespace winnow

int main(int argc, char** argv) {
  return winnow::Main(argc, argv);
}
