#include "cmd/connection/request_options.h"

namespace winnow {

void RequestOptions::Declare(Fields& fields) {
  fields.Integer("max-tokens", &max_tokens, "Most tokens to generate; 0 = what is left of the context.");
  fields.Number("temperature", &temperature, "0 = greedy; negative = the server's default.", -1, 100);
  fields.Text("selection", &selection,
              "Preset or specification, preset[,field=value...] or field=value[,...]; fields that are fixed when the "
              "server starts stay the server's. Empty = the server's default.");
  fields.Integer("budget", &budget, "Selected rows per head; 0 = that of the selection.");
}

void RequestOptions::ApplyTo(v1::GenerateRequest& request) const {
  if (max_tokens > 0) request.set_max_tokens(max_tokens);
  if (temperature >= 0) request.mutable_sampling()->set_temperature(static_cast<float>(temperature));
  if (!selection.empty()) request.mutable_selection()->set_specification(selection);
  if (budget > 0) request.mutable_selection()->set_budget_tokens(budget);
}

}  // namespace winnow
