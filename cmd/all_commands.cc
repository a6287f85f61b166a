#include "cmd/commands.h"

namespace winnow {

std::span<const Command* const> AllCommands() {
  static constexpr const Command* kAll[] = {
      &kUpCommand,        &kConfigCommand, &kDeployCommand,       &kKeysCommand,      &kGenerateCommand,
      &kChatCommand,      &kBatchCommand,  &kStatusCommand,       &kTopCommand,       &kProbeCommand,
      &kTimelineCommand,  &kAdminCommand,  &kChaosCommand,        &kSelectionCommand, &kBenchCommand,
      &kPlanCommand,      &kDoctorCommand, &kProfileHeadsCommand, &kRouterCommand,    &kInferenceRankCommand,
      &kCacheRankCommand, &kDemoCommand,   &kCompletionCommand,   &kHelpCommand,      &kVersionCommand};
  return kAll;
}

}  // namespace winnow
