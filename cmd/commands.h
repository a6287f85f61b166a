#pragma once
#include <span>

#include "cmd/command/command.h"

// The commands of the `winnow` binary.

namespace winnow {

extern const Command kUpCommand, kConfigCommand, kDeployCommand, kKeysCommand, kAdminCommand, kChaosCommand;
extern const Command kGenerateCommand, kChatCommand, kBatchCommand, kStatusCommand, kTopCommand, kProbeCommand,
    kTimelineCommand;
extern const Command kSelectionCommand, kBenchCommand, kBenchEngineCommand, kBenchServeCommand;
extern const Command kPlanCommand, kDoctorCommand, kProfileHeadsCommand, kDemoCommand;
extern const Command kRouterCommand, kInferenceRankCommand, kCacheRankCommand;
extern const Command kCompletionCommand, kHelpCommand, kVersionCommand;

// In the order in which `winnow help` lists them.
std::span<const Command* const> AllCommands();

}  // namespace winnow
